"""The processes and the scratch folder of one test cluster, and the certainty that both go.

They are in the care of local mode's janitor: it sees the end of this process, SIGKILL included, kills what was
started and removes the folder. What the loss of a whole machine leaves behind is removed when the next one starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kvferry_operator.local import proc, state
from kvferry_operator.local.custody import Custody

_STOP_SECONDS = 60.0
_LOG_TAIL_BYTES = 3000


class CannotRun(Exception):
    """A component did not come up or ended. The message holds the end of its log."""


class Processes:
    """folder: the scratch folder. Not for threads."""

    def __init__(self, folder: Path, run: str, custody: Custody) -> None:
        self.folder = folder
        self._run = run
        self._custody = custody
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Start a component as the leader of a session of its own; what it prints goes to its log. Gives its pid."""
        with self.log(name).open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
                env={**(os.environ if environment is None else environment), proc.RUN: self._run},
            )
        identity = proc.identity(child.pid)
        assert identity is not None, "an unreaped child has an entry in /proc"
        self._custody.add(identity)
        self._running[name] = child
        return child.pid

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def check(self, name: str) -> None:
        """Raises:
        CannotRun: the component has ended.
        """
        code = self._running[name].poll()
        if code is not None:
            raise CannotRun(f"{name} ended with status {code}:\n{self.tail(name)}")

    def tail(self, name: str) -> str:
        return self.log(name).read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def signal(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)

    def kill(self, name: str) -> None:
        """SIGKILL, and wait until it is gone."""
        child = self._running.pop(name)
        child.kill()
        child.wait(_STOP_SECONDS)

    def wait_until(self, name: str, ready: Callable[[], bool], seconds: float) -> None:
        """Poll `ready()` until it is true.

        Raises:
            CannotRun: the component ended, or the time is over.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            self.check(name)
            if time.monotonic() > deadline:
                raise CannotRun(f"{name} is not ready after {seconds:.0f} s:\n{self.tail(name)}")
            time.sleep(0.05)  # components tell whether they are ready only when they are asked

    def _reap(self) -> None:
        for child in self._running.values():
            child.wait(_STOP_SECONDS)


@contextlib.contextmanager
def custody(kind: str) -> Iterator[Processes]:
    """A scratch folder and the right to start processes; on the way out all of them are killed and the folder goes."""
    with custody_of(f"{kind}-{os.getpid()}-{secrets.token_hex(2)}", Path(tempfile.gettempdir())) as processes:
        yield processes


@contextlib.contextmanager
def custody_of(name: str, parent: Path) -> Iterator[Processes]:
    """The same for what can exist once on a machine. parent: where the scratch folder is made.

    Raises:
        AlreadyRunning: another process has it.
    """
    base = folders(parent)
    _sweep(base)
    claim = state.claim(base, name, "wait for it, or end it")
    care = Custody.start(claim)
    processes = Processes(claim.folder, claim.run, care)
    try:
        yield processes
    finally:
        asyncio.run(care.close())
        processes._reap()


def folders(parent: Path) -> Path:
    """Where the scratch folders of this user's test clusters are."""
    return parent / f"kvferry-cluster-{os.getuid()}"


def _sweep(base: Path) -> None:
    """Remove what nobody holds any more: neither a test run nor its janitor."""
    for folder in state.instances(base):
        owner = state.owner_of(folder)
        if owner is not None and not state.held(folder):
            state.remove(folder, owner)
