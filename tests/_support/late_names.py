"""A resolver of a process's own, in which names appear when a test says so, as a pod's name does in DNS.

Processes find it as `sitecustomize`, by `PYTHONPATH`; nothing else of them is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_RESOLVER = """
import pathlib, socket

folder = pathlib.Path(__file__).parent
names = set((folder / "names").read_text().split())
system = socket.getaddrinfo


def getaddrinfo(host, *rest, **more):
    if host not in names:
        return system(host, *rest, **more)
    with (folder / "asked").open("a") as asked:
        asked.write(f"{host}\\n")
    if not (folder / host).is_file():
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return system((folder / host).read_text(), *rest, **more)


socket.getaddrinfo = getaddrinfo
"""


class LateNames:
    """folder: an empty one. names: that have no address yet."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._folder = folder
        (folder / "names").write_text(" ".join(names))
        (folder / "sitecustomize.py").write_text(_RESOLVER)

    @property
    def environ(self) -> Mapping[str, str]:
        """For the processes that are to ask it."""
        return {"PYTHONPATH": str(self._folder)}

    def asked(self, name: str) -> int:
        """How often."""
        file = self._folder / "asked"
        return file.read_text().split().count(name) if file.is_file() else 0

    def appears(self, name: str, address: str) -> None:
        whole = self._folder / f"{name}.new"
        whole.write_text(address)
        whole.rename(self._folder / name)
