"""Containers of which none goes on when one has ended: the engines of a group of pipeline stages.

In a cluster the operator recreates such a group as a whole. Here its engines end together and start again together, so
that a new engine never meets an old one; sidecars stay, since they hold nothing of a group.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

GRACE_SECONDS = 10.0
"""An engine that loses its group fails what is open and ends by itself, after three missed pings at the latest. One
that is still there after this time hangs."""


class Member(Protocol):
    """A container that is started again whenever it ends."""

    async def end_with_others(self, seconds: float) -> None:
        """Return when the process that runs now, if any, has ended: by itself, or after `seconds` killed."""
        ...


class Bond:
    """One group's engines. Used from one event loop."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._ending: asyncio.Task[None] | None = None

    def add(self, member: Member) -> None:
        self._members.append(member)

    async def broken(self) -> None:
        """One has ended: wait until all have.

        Each of them waits here when it has ended, and then for its back-off, which is longer than the others need to
        notice; so none starts while an old one is there.
        """
        if self._ending is None or self._ending.done():
            self._ending = asyncio.create_task(self._end_all())
        await asyncio.shield(self._ending)

    async def _end_all(self) -> None:
        await asyncio.gather(*(member.end_with_others(GRACE_SECONDS) for member in self._members))
