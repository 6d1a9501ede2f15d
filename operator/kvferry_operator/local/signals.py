"""The first signal ends the work in good order, each further one is from somebody who cannot wait."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


async def until_signal(work: Coroutine[Any, Any, T], hurry: Callable[[], None], say: Callable[[str], None]) -> T | None:
    """The result of `work`; None when a signal ended it.

    The first signal cancels it, and it stops on its way out what it had started; each further one calls `hurry`,
    which kills that instead.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    asked_before = False

    def on_signal() -> None:
        nonlocal asked_before
        if asked_before:
            hurry()
            return
        asked_before = True
        say("stopping (once more to kill at once)")
        task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
