"""When which key is due: coalescing, one pass of a key at a time, rest between passes, back-off. No clock, no I/O."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

Key = tuple[str, str]
"""Namespace and name of a model."""

REST_SECONDS = 0.5
"""Between the end of a pass and the next one of the same key, in which the echoes of its own writes come together."""
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Entry:
    """failures: passes in a row that went wrong. not_before: what no mark makes earlier, except an urgent one."""

    failures: int = 0
    not_before: float = 0.0


class Schedule:
    """Every moment is given by the caller, in seconds of one monotonic clock.

    It holds nothing of a key that is neither due, nor running, nor resting, nor failing.
    """

    def __init__(self, spread: Callable[[], float] = random.random) -> None:
        """spread: numbers from 0 to 1, which keep keys apart that failed together."""
        self._spread = spread
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._running: set[Key] = set()
        self._urgent: dict[Key, None] = {}
        """In the order in which they came."""
        self._entries: dict[Key, _Entry] = {}

    def __len__(self) -> int:
        """Keys that wait for their time or for a worker."""
        return len(self._due)

    def mark(self, key: Key, now: float, after: float = 0.0, *, urgent: bool = False) -> None:
        """Have a pass of `key` in `after` seconds, or when its back-off is over; several marks are one pass.

        urgent: somebody waits for it. It goes before others, and does not wait for a back-off, since what made the
        passes fail may be gone.
        """
        if urgent:
            self._urgent[key] = None
        self._set_due(key, max(now + after, self._not_before(key)))

    def take(self, now: float) -> Key | None:
        """An urgent key, else the one that has been due longest; it runs until `done` or `failed`."""
        for key in self._urgent:
            if key not in self._running and self._due.get(key, math.inf) <= now:
                return self._begin(key)
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due and key not in self._running:
                return self._begin(key)
        return None

    def next_due(self) -> float | None:
        """When `take` may have something, unless something is marked or ends before."""
        while self._heap:
            due, key = self._heap[0]
            if self._due.get(key) == due and key not in self._running:
                return due
            heapq.heappop(self._heap)
        return None

    def done(self, key: Key, now: float, again_after: float | None = None) -> None:
        """A pass went well. again_after: seconds until the next one, unless a mark asks for one before."""
        self._end(key, _Entry(0, now + REST_SECONDS))
        if again_after is not None:
            self._set_due(key, now + max(again_after, REST_SECONDS))

    def failed(self, key: Key, now: float, retry_after: float = 0.0) -> float:
        """A pass went wrong; gives the seconds until the next one. retry_after: the least that the server asks for."""
        failures = self._entries.get(key, _Entry()).failures + 1
        longest = min(FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 16), LONGEST_BACKOFF_SECONDS)
        wait = max(longest * (0.5 + self._spread() / 2), retry_after, REST_SECONDS)
        self._end(key, _Entry(failures, now + wait))
        self._set_due(key, now + wait)
        return wait

    def forget_rested(self, now: float) -> None:
        """Drop what is remembered only of keys whose rest is over."""
        for key in [key for key, entry in self._entries.items() if not entry.failures and entry.not_before <= now]:
            if key not in self._due and key not in self._running:
                del self._entries[key]

    def _begin(self, key: Key) -> Key:
        del self._due[key]
        self._urgent.pop(key, None)
        self._running.add(key)
        return key

    def _end(self, key: Key, entry: _Entry) -> None:
        self._running.discard(key)
        self._entries[key] = entry
        # marked while it ran
        marked = self._due.pop(key, None)
        if marked is not None:
            self._set_due(key, max(marked, self._not_before(key)))

    def _not_before(self, key: Key) -> float:
        return 0.0 if key in self._urgent else self._entries.get(key, _Entry()).not_before

    def _set_due(self, key: Key, due: float) -> None:
        if due < self._due.get(key, math.inf):
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
