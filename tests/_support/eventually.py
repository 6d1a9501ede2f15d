"""Waiting in tests: for a fact, with a deadline that is there against hanging alone and says what never came true.

By looking again and again: most facts are of other processes, which tell of them only when they are asked. Where there
is an event, wait for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")

_PAUSE_SECONDS = 0.05
_SECONDS = 120.0
"""Above the longest pause that the operator makes between two attempts, on a slow machine that others use too."""


def eventually(look: Callable[[], Result], what: str, seconds: float = _SECONDS) -> Result:
    """The first result of `look` that is true, in Python's sense.

    Raises:
        AssertionError: there was none in time.
    """
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}; last seen: {found!r}"
        time.sleep(_PAUSE_SECONDS)
    return found


async def eventually_async(look: Callable[[], Awaitable[Result]], what: str, seconds: float = _SECONDS) -> Result:
    """The same for what has to be awaited."""
    deadline = time.monotonic() + seconds
    while not (found := await look()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}; last seen: {found!r}"
        await asyncio.sleep(_PAUSE_SECONDS)
    return found
