"""A bound on log lines that somebody outside can cause."""

from __future__ import annotations

from collections.abc import Callable


class LogLimit:
    """Lets `lines` pass in each span of `seconds`; metrics count the rest."""

    def __init__(self, clock: Callable[[], float], lines: int = 20, seconds: float = 10.0) -> None:
        self._clock = clock
        self._lines = lines
        self._seconds = seconds
        self._since = clock()
        self._passed = 0
        self._held_back = 0

    def held_back(self) -> int | None:
        """How many lines were held back since the last one that passed; None if this one must be held back too."""
        now = self._clock()
        if now - self._since >= self._seconds:
            self._since, self._passed = now, 0
        if self._passed >= self._lines:
            self._held_back += 1
            return None
        self._passed += 1
        held_back, self._held_back = self._held_back, 0
        return held_back
