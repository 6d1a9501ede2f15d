"""The first stage's way to a complete group: all stages say what they have, and then it begins."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvferry_runtime.engine.reference.messages import GroupLost, Message, Reported
from kvferry_runtime.engine.stages import messages as group
from kvferry_runtime.engine.stages.ring import Activation, StageRing
from kvferry_runtime.errors import StageUnreachable

READY_SECONDS = 60.0
"""From a complete ring to the last stage's word. Each stage joins when it has loaded its layers, so little is left."""


class Gathering:
    """leaving: called in the ring's thread with the number of a stage that was told to end."""

    def __init__(self, ring: StageRing, leaving: Callable[[int], None]) -> None:
        self.ring = ring
        self._leaving = leaving
        self._condition = threading.Condition()
        self._ready: dict[int, group.Ready] = {}
        self._lost: str | None = None
        self._post: Callable[[Message], None] | None = None

    def agree(self, rows: int, blocks: int, seconds: float = READY_SECONDS) -> tuple[int, int]:
        """How many rows and KV blocks all stages have, of which this one has so many.

        Raises:
            StageUnreachable: a stage was not ready in time, or the ring broke.
        """
        self.ring.start(self._take, self._lose)
        with self._condition:
            complete = self._condition.wait_for(lambda: self._lost or self._missing() == [], seconds)
            if self._lost is not None:
                raise StageUnreachable(self._lost)
            if not complete:
                stages = ", ".join(map(str, self._missing()))
                raise StageUnreachable(f"of this group, stage {stages} was not ready within {seconds:g} s: see its log")
            others = self._ready.values()
            return min(rows, *(each.rows for each in others)), min(blocks, *(each.blocks for each in others))

    def begin(self, post: Callable[[Message], None]) -> None:
        """Tell all stages that the group is complete. post: takes what they say from now on."""
        with self._condition:
            self._post = post
            lost = self._lost
        if lost is not None:
            post(GroupLost(lost))
        self.ring.send(group.Begin())

    def _missing(self) -> list[int]:
        return [stage for stage in range(1, self.ring.stages) if stage not in self._ready]

    def _take(self, message: group.AnyMessage, _: Activation | None) -> None:
        """In the ring's thread."""
        if isinstance(message, group.Ready):
            with self._condition:
                self._ready[message.stage] = message
                self._condition.notify()
        elif isinstance(message, group.Leaving):
            self._leaving(message.stage)
        elif self._post is not None and isinstance(message, group.AnyReport):
            self._post(Reported(message))

    def _lose(self, text: str) -> None:
        """In the ring's thread."""
        with self._condition:
            self._lost = text
            self._condition.notify()
            post = self._post
        if post is not None:
            post(GroupLost(text))
