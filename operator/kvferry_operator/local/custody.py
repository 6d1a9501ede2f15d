"""The supervisor's hold on its janitor: started before anything else, closed after everything else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys

from kvferry_operator.local import janitor, proc
from kvferry_operator.local.errors import CannotStart
from kvferry_operator.local.state import Claim

_CLOSE_SECONDS = 20.0
_MODULE = janitor.__name__


class Custody:
    """The janitor of one claim. Call `close` on every way out; if the process dies instead, the janitor acts alone."""

    def __init__(self, claim: Claim, child: subprocess.Popen[bytes]) -> None:
        self._claim = claim
        self._child = child
        self._leaders: list[proc.Identity] = []

    @classmethod
    def start(cls, claim: Claim) -> Custody:
        """Returns when the janitor is on duty.

        Raises:
            CannotStart: it did not come up; the claim's folder is removed.
        """
        command = [sys.executable, "-P", "-m", _MODULE, claim.run, str(claim.memory), str(claim.folder)]
        child = subprocess.Popen(  # noqa: S603 (our own module)
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=(claim.descriptor,),
            start_new_session=True,
            cwd="/",
        )
        assert child.stdout is not None
        if child.stdout.readline() != b"ready\n":
            child.kill()
            child.wait()
            janitor.sweep(claim.run, [], [claim.memory, claim.folder])
            claim.release()
            raise CannotStart(f"the process that cleans up did not start: {' '.join(command)}")
        child.stdout.close()
        return cls(claim, child)

    def add(self, leader: proc.Identity) -> None:
        """Put one more session into its care."""
        self._leaders.append(leader)
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then `close` does its work
            os.write(self._child.stdin.fileno(), f"{leader.pid} {leader.start}\n".encode())

    async def close(self) -> None:
        """Have it clean up, and wait until it has; the name is free afterwards."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            status = await asyncio.to_thread(self._child.wait, _CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            status = self._child.wait()
        if status != 0:
            folders = [self._claim.memory, self._claim.folder]
            await asyncio.to_thread(janitor.sweep, self._claim.run, self._leaders, folders)
        self._claim.release()
