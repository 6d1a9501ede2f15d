"""Ends what a run has left behind, when the supervisor is gone: however it went, SIGKILL included.

Run as `python -m kvferry_operator.local.janitor RUN FOLDER…`. Its standard input is a pipe whose other end the
supervisor alone holds; each line is `PID START`, the leader of a session that the supervisor began. At the end of
the pipe it kills these sessions and every process that bears the run's mark, then removes the folders.

The supervisor also ends this way when it stops in good order, so there is one way out, not two. The lock of the
instance is inherited: the name is free only when all is clean.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import time
from pathlib import Path

from kvferry_operator.local import proc

_DEADLINE_SECONDS = 10.0
"""For killed processes to vanish; one in uninterruptible sleep may take this long."""
_PAUSE_SECONDS = 0.02


def sweep(run: str, leaders: list[proc.Identity], folders: list[Path]) -> None:
    """Kill until nothing is left, then remove the folders, and the one above them when that leaves it empty."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while sum(proc.kill_session(leader) for leader in leaders) + proc.kill_run(run) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)  # between two looks at /proc: nothing tells of the end of a stranger's child
    for folder in folders:
        remove(folder)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()


def remove(folder: Path) -> None:
    """Remove a folder and all that is in it; what cannot be removed stays, and the rest goes."""
    shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when the supervisor does, never before
    run, folders = arguments[0], [Path(folder) for folder in arguments[1:]]
    print("ready", flush=True)  # noqa: T201
    leaders: list[proc.Identity] = []
    for line in sys.stdin:
        pid, start = line.split()
        leaders.append(proc.Identity(int(pid), int(start)))
    sweep(run, leaders, folders)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
