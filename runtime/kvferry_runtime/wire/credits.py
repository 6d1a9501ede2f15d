"""Credits of one session: how many messages P may send, because D has a receive posted for each.

Message number `n` meets the receive number `n`. Numbers are never reused within a session.
"""

from __future__ import annotations

LAST_NUMBER = 1 << 31
"""A session that has used this many credits (two petabytes of 1 MiB chunks) is closed and dialled again."""


class SendCredits:
    """P's side. A credit is reserved when a slot is lent for it, and taken when the message goes out."""

    def __init__(self) -> None:
        self._limit = 0
        self._next = 0
        self._reserved = 0

    @property
    def available(self) -> int:
        """Credits that are neither used nor reserved."""
        return self._limit - self._next - self._reserved

    @property
    def spent(self) -> bool:
        """The peer has no receive posted that was not used."""
        return self._next >= self._limit

    @property
    def used(self) -> int:
        """Messages that went out."""
        return self._next

    def grant(self, limit: int) -> None:
        """D said that numbers below `limit` are posted; an older grant changes nothing."""
        self._limit = max(self._limit, limit)

    def reserve(self) -> None:
        assert self.available > 0
        self._reserved += 1

    def cancel(self) -> None:
        """Give a reserved credit back unused."""
        assert self._reserved > 0
        self._reserved -= 1

    def take(self) -> int:
        """The number of the next message, out of a reserved credit."""
        assert self._reserved > 0
        self._reserved -= 1
        self._next += 1
        return self._next - 1


class ReceiveCredits:
    """D's side."""

    def __init__(self) -> None:
        self._limit = 0

    @property
    def limit(self) -> int:
        """All numbers below this are or were posted."""
        return self._limit

    @property
    def exhausted(self) -> bool:
        return self._limit >= LAST_NUMBER

    def post(self) -> int:
        """The number of the next receive."""
        self._limit += 1
        return self._limit - 1
