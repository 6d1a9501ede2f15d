"""What /proc says about processes, and how to kill exactly the right ones.

A process id alone names nobody: it may have been given to a stranger meanwhile. So a process is known by its id
and the tick of the machine's clock at which it started, and is killed through a descriptor that was opened before
it was looked at.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

RUN = "KVFERRY_LOCAL_RUN"
"""Set in every process that local mode starts, and inherited by what they start: which run it belongs to."""


@dataclass(frozen=True, slots=True)
class Stat:
    """start: clock ticks since boot. cpu_seconds: of all its threads, without its children."""

    pid: int
    state: str
    session: int
    start: int
    cpu_seconds: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, for good: its id and the tick at which it started."""

    pid: int
    start: int


def stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return Stat(
        pid=pid,
        state=fields[0],
        session=int(fields[3]),
        start=int(fields[19]),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / ticks,
        memory_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
    )


def identity(pid: int) -> Identity | None:
    found = stat(pid)
    return Identity(pid, found.start) if found else None


def alive(process: Identity) -> bool:
    """Whether that very process still runs (a zombie does not)."""
    found = stat(process.pid)
    return found is not None and found.start == process.start and found.state not in "ZX"


def kill(process: Identity, number: signal.Signals) -> bool:
    """Send a signal to that very process; False when it is gone."""
    return _kill_if(process.pid, number, lambda found: found.start == process.start)


def kill_session(leader: Identity) -> int:
    """SIGKILL to all processes of the session that `leader` began; how many there were.

    The leader may be gone: its id is not given away while the session has members. An id that now belongs to a
    process with another start is a stranger's, and so is its session.
    """
    now = stat(leader.pid)
    if now is not None and now.start != leader.start:
        return 0
    return sum(_kill_if(pid, signal.SIGKILL, lambda found: found.session == leader.pid) for pid in pids())


def kill_run(run: str) -> int:
    """SIGKILL to all processes that carry this run's mark in their environment; how many there were."""
    mark = f"{RUN}={run}".encode()

    def marked(found: Stat) -> bool:
        try:
            return mark in Path(f"/proc/{found.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    return sum(_kill_if(pid, signal.SIGKILL, marked) for pid in pids())


def pids() -> Iterator[int]:
    own = os.getpid()
    for entry in os.listdir("/proc"):  # noqa: PTH208 (a tenth of the time that Path objects take)
        if entry.isdigit() and int(entry) != own:
            yield int(entry)


def _kill_if(pid: int, number: signal.Signals, wanted: Callable[[Stat], bool]) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        found = stat(pid)
        if found is None or found.state in "ZX" or not wanted(found):
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(descriptor, number)
            return True
        return False
    finally:
        os.close(descriptor)
