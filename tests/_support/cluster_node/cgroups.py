"""The node's own branch of each cgroup hierarchy, so that its pods are found and removed by name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from cluster_node import addresses

ROOT = Path("/sys/fs/cgroup")
_EMPTY_SECONDS = 60.0


def make() -> None:
    """On version 1 in each hierarchy; on version 2 once, with all controllers that the machine lets it have."""
    if (ROOT / "cgroup.controllers").exists():
        branch = ROOT / addresses.NAME
        branch.mkdir(exist_ok=True)
        wanted = [f"+{name}" for name in (ROOT / "cgroup.controllers").read_text().split()]
        for folder in (ROOT, branch):
            (folder / "cgroup.subtree_control").write_text(" ".join(wanted))
        return
    for hierarchy in _hierarchies():
        (hierarchy / addresses.NAME).mkdir(exist_ok=True)


def remove() -> None:
    """Remove the branch, whose processes are dead or dying.

    Raises:
        OSError: a process still lives in it after a minute.
    """
    deadline = time.monotonic() + _EMPTY_SECONDS
    for branch in [ROOT / addresses.NAME, *(hierarchy / addresses.NAME for hierarchy in _hierarchies())]:
        if branch.exists():
            _remove(branch, deadline)


def _remove(branch: Path, deadline: float) -> None:
    for folder in [*_below(branch), branch]:
        while True:
            try:
                folder.rmdir()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)  # control groups of version 1 tell nobody that they are empty


def _below(branch: Path) -> Iterator[Path]:
    """Deepest first."""
    for child in branch.iterdir():
        if child.is_dir():
            yield from _below(child)
            yield child


def _hierarchies() -> list[Path]:
    """Of version 1, with the `unified` one of a machine that has both."""
    if (ROOT / "cgroup.controllers").exists():
        return []
    return [folder for folder in ROOT.iterdir() if folder.is_dir() and not folder.is_symlink() and _mounted(folder)]


def _mounted(folder: Path) -> bool:
    return (folder / "cgroup.procs").exists()
