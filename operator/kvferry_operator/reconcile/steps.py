"""The numbered steps of a pass, and how one hears of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum

from kvferry_operator import logs

logger = logging.getLogger(__name__)


class PassStep(StrEnum):
    """In this order. An object that is invalid or paused goes on with `STATUS`."""

    LOAD = "load"
    PARSE = "parse"
    PLAN = "plan"
    """What is wanted is built, and the next step towards it chosen."""
    APPLY = "apply"
    STATUS = "status"
    WRITE = "write"


Trace = Callable[[PassStep, str], None]
"""Called when a step begins, with an empty text, and before each request that writes, with what it writes."""


def log_step(step: PassStep, what: str) -> None:
    """The `Trace` of a running operator."""
    logs.note(step=step.value)
    if what:
        logger.debug("writes %s", what)
