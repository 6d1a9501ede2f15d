"""Ends an instance from outside, whatever state it is in."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from kvferry_operator.local import proc, state
from kvferry_operator.local.errors import NotRunning

_CLEANING_SECONDS = 20.0
_PAUSE_SECONDS = 0.05


def find(base: Path, name: str) -> Path:
    """The folder of the instance called `name` (or `namespace/name`); with no name, of the only one.

    Raises:
        NotRunning: none, or several and no name to choose by.
    """
    names = {folder: _names(folder) for folder in state.instances(base)}
    listed = ", ".join(sorted(known[0] for known in names.values())) or "none"
    found = [folder for folder, known in names.items() if not name or name in known]
    if not found:
        raise NotRunning(f"no instance {name} runs here; running: {listed}" if name else "nothing runs here")
    if len(found) > 1:
        raise NotRunning(f"several instances run here, name one of: {listed}")
    return found[0]


def down(folder: Path, report: Callable[[str], None], grace_seconds: float) -> None:
    """Have the supervisor stop everything; after the grace, kill it, and its janitor cleans up.

    Returns when no process and no file of the instance is left.

    Raises:
        NotRunning: it cannot be ended; the message names what is left.
    """
    owner = state.owner_of(folder)
    if owner is None:
        raise NotRunning(f"{folder} belongs to an instance that is only just starting: try again")
    if proc.alive(owner.process):
        report(f"stopping pid {owner.pid}")
        proc.kill(owner.process, signal.SIGTERM)
        if not _ends(owner.process, grace_seconds):
            report(f"pid {owner.pid} did not stop within {grace_seconds:.0f} s: killing it")
            proc.kill(owner.process, signal.SIGKILL)
    deadline = time.monotonic() + _CLEANING_SECONDS
    while state.held(folder) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)  # a lock has no event that tells of its release
    if state.held(folder):
        raise NotRunning(f"{folder} is still held after {_CLEANING_SECONDS:.0f} s (pid {owner.pid})")
    if folder.exists():
        report("cleaning up after a crash")
        state.remove(folder, owner)


def _names(folder: Path) -> tuple[str, ...]:
    record = state.read_record(folder)
    return (record.name, f"{record.namespace}/{record.name}", folder.name) if record else (folder.name,)


def _ends(process: proc.Identity, seconds: float) -> bool:
    """Whether the process ends within this time."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(int(seconds * 1000))) or not proc.alive(process)
    finally:
        os.close(descriptor)
