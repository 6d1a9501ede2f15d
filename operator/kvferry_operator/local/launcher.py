"""Becomes the program of a container, tied to the life of the supervisor. Run as a script, never imported.

Usage: launcher.py SUPERVISOR_PID PROGRAM [ARGUMENT…]

The kernel kills this process when the supervisor ends, however it ends; the tie survives exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    supervisor, program = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        print(f"cannot be tied to the supervisor: {os.strerror(ctypes.get_errno())}", file=sys.stderr)  # noqa: T201
        return 126
    if os.getppid() != supervisor:  # it ended before the tie was made
        return 126
    try:
        os.execvp(program[0], program)  # noqa: S606 (the rendered command of the container)
    except OSError as error:
        print(f"{program[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
