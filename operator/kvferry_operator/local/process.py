"""One container's process: started in a session of its own, watched, and ended with everything that it started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from kvferry_operator.local import launcher, proc
from kvferry_operator.local.containers import Launch

_SCRIPT = launcher.__file__
_MARK = "--- "
"""Begins the line in a log that tells of a start."""


class Process:
    """A running process. `start` makes one; the caller waits for it or stops it, or it stays for ever."""

    def __init__(self, child: subprocess.Popen[bytes], identity: proc.Identity) -> None:
        self.identity = identity
        self._child = child
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # A descriptor tells of the end without a thread, and before the id is given free: what the process left
        # behind in its session can still be named then.
        self._descriptor = os.pidfd_open(child.pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_end)

    @classmethod
    def start(cls, launch: Launch, run: str, restart: int) -> Process:
        """Start the container's program; its output is appended to its log.

        Raises:
            OSError: the log cannot be opened, or no process can be made.
        """
        launch.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        launch.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with launch.log.open("ab") as log:
            moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            log.write(f"{_MARK}{moment} {launch.container} starts (restart {restart})\n".encode())
            log.flush()
            child = subprocess.Popen(  # noqa: S603 (the rendered command of the container)
                [sys.executable, "-I", "-S", _SCRIPT, str(os.getpid()), *launch.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=launch.directory,
                env={**launch.environment, proc.RUN: run},
                start_new_session=True,
            )
        found = proc.identity(child.pid)
        assert found is not None, "a child that was not waited for is still there"
        return cls(child, found)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        proc.kill_session(self.identity)
        self._ended.set_result(self._child.wait())

    async def wait(self) -> int:
        """Exit status; negative for the signal that ended it."""
        return await asyncio.shield(self._ended)

    async def stop(self, grace_seconds: float) -> int:
        """SIGTERM, then after the grace SIGKILL; the exit status."""
        if not self._ended.done():
            proc.kill(self.identity, signal.SIGTERM)
            # a stopped process gets SIGTERM only when it goes on
            proc.kill(self.identity, signal.SIGCONT)
        try:
            return await asyncio.wait_for(self.wait(), grace_seconds)
        except TimeoutError:
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        """SIGKILL to the process and its session, now."""
        if not self._ended.done():
            proc.kill_session(self.identity)


def exit_text(status: int) -> str:
    """How a process ended, for people."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def last_lines(log: Path, count: int, limit_bytes: int = 16384) -> list[str]:
    """The last lines of a log since the last start that `Process.start` marked; empty when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit_bytes))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(_MARK):
            lines.clear()
        elif line.strip():
            lines.append(line)
    return lines[-count:]
