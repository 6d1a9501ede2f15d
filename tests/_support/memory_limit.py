"""A limit on the memory of one process, as a container has it: needs root, and a memory controller to make groups in.

What a process writes counts, what it maps from files counts only until the kernel takes it back. So a process that
needs more of its own is killed, and one that maps more than the limit only gets slow.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

_V2 = Path("/sys/fs/cgroup")
_V1 = _V2 / "memory"
_GONE_SECONDS = 10.0


class MemoryLimit:
    """One control group."""

    def __init__(self, folder: Path, limit: str, kills: str) -> None:
        self._folder = folder
        self._limit = limit
        self._kills = kills

    def set(self, limit: int) -> None:
        """In bytes."""
        (self._folder / self._limit).write_text(str(limit))

    @property
    def kills(self) -> int:
        """How often the kernel killed a process because of this limit."""
        found = dict(line.split() for line in (self._folder / self._kills).read_text().splitlines())
        return int(found["oom_kill"])

    def command(self, command: Sequence[str]) -> list[str]:
        """As this one, inside of the limit from its first instruction on."""
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._folder / "cgroup.procs"), *command]


@contextlib.contextmanager
def memory_limit(name: str, limit: int) -> Iterator[MemoryLimit]:
    """A group without processes; those that are put into it must have ended at the end. Skips the test where none can
    be made.

    limit: in bytes.
    """
    v1 = (_V1 / "memory.limit_in_bytes").is_file()
    folder = (_V1 if v1 else _V2) / f"kvferry-{name}-{os.getpid()}"
    names = ("memory.limit_in_bytes", "memory.oom_control") if v1 else ("memory.max", "memory.events")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory limit can be set here: {error}")
    try:
        made = MemoryLimit(folder, *names)
        try:
            made.set(limit)
        except OSError as error:
            pytest.skip(f"no memory limit can be set here: {error}")
        yield made
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """A process that was killed a moment ago may still be there."""
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # control groups of version 1 tell nobody that they are empty
        else:
            return
