"""How long the forward pass over a prompt will take, from those before. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

KEPT = 8
MIN_TOKENS = 16
"""Shorter passes say nothing about long ones: most of their time does not depend on the number of tokens."""


class PrefillRate:
    """Tokens a second of the last passes. The median: one pass that waited for something else changes nothing."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=KEPT)

    @property
    def tokens_per_second(self) -> float | None:
        """None before the first pass."""
        return median(self._rates) if self._rates else None

    def observed(self, tokens: int, seconds: float) -> None:
        """A pass over so many tokens took so long."""
        if tokens >= MIN_TOKENS and seconds > 0:
            self._rates.append(tokens / seconds)

    def seconds(self, tokens: int) -> float | None:
        """What a pass over so many tokens will take; None before the first one."""
        rate = self.tokens_per_second
        return None if rate is None else tokens / rate
