"""Two network namespaces joined by a link whose rate can be set: what stands for a network between two nodes.

Names carry the process that made them, so that a later run finds and removes those of a run that was killed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kvferry_runtime.bench.rate import Rate
from kvferry_runtime.errors import KvferryError

PREFIX = "kvferry-bench"
DEVICE = "link0"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
"""Inside namespaces of their own, where nobody else has any."""

_PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "iperf3": "iperf3"}
_NAME = re.compile(rf"{PREFIX}-(\d+)-(\d+)-\d+[ab]")
_COMMAND_SECONDS = 20.0


def missing() -> list[str]:
    """What keeps this process from making limited links, each with what to do about it; empty if nothing does."""
    found = [
        f"{program} is not installed: apt-get install {package}"
        for program, package in _PROGRAMS.items()
        if shutil.which(program) is None
    ]
    if os.geteuid() != 0:
        return [*found, "network namespaces need root: run it with sudo"]
    if not found:
        try:
            with linked():
                pass
        except KvferryError as error:
            found.append(f"no limited link can be made here: {error}")
    return found


@dataclass(frozen=True, slots=True)
class Namespace:
    """One side of a link."""

    name: str
    address: str

    @property
    def prefix(self) -> list[str]:
        """Of a command that is to run inside. `ip` also mounts a /sys that shows the namespace's own devices, without
        which UCX finds none."""
        return ["ip", "netns", "exec", self.name]

    @property
    def variables(self) -> dict[str, str]:
        """For UCX, which else tries the loopback of either side too."""
        return {"UCX_NET_DEVICES": DEVICE}


@dataclass(frozen=True, slots=True)
class Link:
    """Both directions have the same rate."""

    ends: tuple[Namespace, Namespace]

    def limit(self, rate: Rate) -> None:
        """From now on; also while something is on its way. Raises KvferryError."""
        burst, queue = rate.bucket()
        for end in self.ends:
            _run(
                "tc", "-netns", end.name, "qdisc", "replace", "dev", DEVICE, "root", "handle", "1:",
                "tbf", "rate", f"{rate.bits:.0f}bit", "burst", f"{burst}b", "limit", f"{queue}b",
            )  # fmt: skip


@contextmanager
def linked(number: int = 0) -> Iterator[Link]:
    """Unlimited until `limit`; removed at the end, with what still runs inside.

    number: of the link, where a process has several. They do not reach each other, so all have the same addresses.

    Raises:
        KvferryError: the kernel or a missing right does not allow it; says which command failed.
    """
    remove_stale()
    names = [f"{PREFIX}-{os.getpid()}-{_started(os.getpid())}-{number}{side}" for side in "ab"]
    ends = tuple(Namespace(name, address) for name, address in zip(names, ADDRESSES, strict=True))
    try:
        for end in ends:
            _run("ip", "netns", "add", end.name)
        _run("ip", "-n", names[0], "link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", names[1])
        for end in ends:
            _run("ip", "-n", end.name, "address", "add", f"{end.address}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                _run("ip", "-n", end.name, "link", "set", device, "up")
        link = Link((ends[0], ends[1]))
        link.limit(Rate(1e9))
        yield link
    finally:
        for name in names:
            with suppress(KvferryError):
                _remove(name)


def remove_stale() -> None:
    """Namespaces of runs that are over, and the processes that these left inside. Needs root."""
    for name in _existing():
        match = _NAME.fullmatch(name)
        if match is not None and _started(int(match[1])) != int(match[2]):
            _remove(name)


def _existing() -> list[str]:
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _remove(name: str) -> None:
    if name not in _existing():
        return
    for pid in _run("ip", "netns", "pids", name).split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _run("ip", "netns", "delete", name)


def _started(pid: int) -> int:
    """When this process began, in clock ticks since boot (proc_pid_stat(5), field 22); -1 if there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return -1


def _run(*command: str) -> str:
    try:
        return subprocess.run(  # noqa: S603
            command, check=True, capture_output=True, text=True, timeout=_COMMAND_SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or str(error)
        raise KvferryError(f"`{' '.join(command)}` failed: {told.strip()}") from error
