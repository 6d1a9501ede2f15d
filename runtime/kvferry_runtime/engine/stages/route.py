"""Where a message that arrives at a stage goes. Pure."""

from __future__ import annotations

from enum import Enum

from kvferry_runtime.engine.stages.messages import AnyMessage, Command, Report
from kvferry_runtime.errors import ProtocolError


class Route(Enum):
    HERE = "here"
    """To this stage's engine."""
    ON = "on"
    """To the next stage, unseen by this one's engine."""
    BOTH = "both"


def route(message: AnyMessage, stage: int, stages: int) -> Route:
    """Of a message from the stage before `stage`.

    Raises:
        ProtocolError: it has gone round: only reports reach the first stage.
    """
    if isinstance(message, Report):
        return Route.HERE if stage == 0 else Route.ON
    if stage == 0:
        raise ProtocolError(f"{type(message).__name__} came back to the first stage, which alone sends it")
    return Route.BOTH if isinstance(message, Command) and stage < stages - 1 else Route.HERE
