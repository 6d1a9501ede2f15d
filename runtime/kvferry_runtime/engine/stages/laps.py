"""When a ring is complete. Pure.

A stage that has both links open knows nothing of the others, and one of them may restart at any time. So the first
stage, whenever both its links come to be open, sends a first lap round the ring, which a stage passes on once it has
both links open too. When the lap comes back all links are open, and a second one tells everybody. Until that one comes,
a link that is lost is opened anew; afterwards its loss ends the group.
"""

from __future__ import annotations

KNOWING, TELLING = 1, 2


class Laps:
    """One stage's part. Methods return the lap to send to the next stage, if any."""

    def __init__(self, *, first: bool) -> None:
        self._first = first
        self._waiting: int | None = None
        self._open = False
        self.complete = False

    def opened(self) -> int | None:
        """Both links are open (again)."""
        self._open = True
        return KNOWING if self._first else self._pass_on()

    def lost(self, *, incoming: bool) -> None:
        """One of the links, before the ring was complete. What came over the other one still counts."""
        self._open = False
        if incoming:
            self._waiting = None

    def received(self, lap: int) -> int | None:
        """A lap came from the stage before."""
        if self.complete:
            # an older first lap may still be under way when a later one has completed the ring
            return None
        if self._first:
            if not self._open:
                return None  # the first lap begins anew with the link
            self.complete = lap == TELLING
            return None if self.complete else TELLING
        self._waiting = lap
        return self._pass_on()

    def _pass_on(self) -> int | None:
        if self._waiting is None or not self._open:
            return None
        self.complete = self._waiting == TELLING
        return self._waiting
