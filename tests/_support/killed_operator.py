"""An operator that is killed at one moment of a pass: `python killed_operator.py STEP:COUNT [flags of the operator]`.

It dies by SIGKILL when the step is told of for the COUNTth time: first when the step begins, then before each request
that the step writes with.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from kvferry_operator import logs, options
from kvferry_operator.reconcile.steps import PassStep, Trace
from kvferry_operator.serve import serve


def dying(moment: str) -> Trace:
    step, _, count = moment.partition(":")
    left = int(count)

    def trace(reached: PassStep, what: str) -> None:
        nonlocal left
        left -= reached == step
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return trace


def main() -> None:
    moment, *flags = sys.argv[1:]
    chosen = options.parse(flags)
    logs.setup(chosen.log_format, chosen.log_level)
    asyncio.run(serve(chosen, dying(moment)))


if __name__ == "__main__":
    main()
