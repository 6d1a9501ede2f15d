"""How long the forward pass over a prompt will take, from those before. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from statistics import median

KEPT = 8
MIN_TOKENS = 16
"""Shorter passes say nothing about long ones: most of their time does not depend on the number of tokens."""
MAX_RANGES = 64
"""As many stages can be at the other side."""


@dataclass(frozen=True, slots=True)
class PassTime:
    """Seconds of a forward pass as one offer sees it: from the first of its layers until the pass is over.

    tail: of them after the last of its layers, where the pass goes on with others.
    """

    compute: float
    tail: float


UNKNOWN = PassTime(0.0, 0.0)


class PrefillRate:
    """Tokens a second of the last passes. The median: one pass that waited for something else changes nothing."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=KEPT)

    def observed(self, tokens: int, seconds: float) -> None:
        """A pass over so many tokens took so long."""
        if tokens >= MIN_TOKENS and seconds > 0:
            self._rates.append(tokens / seconds)

    def seconds(self, tokens: int) -> float:
        """What a pass over so many tokens will take; 0 before the first one."""
        return tokens / median(self._rates) if self._rates else 0.0


class Prefills:
    """Passes by the layers that were offered: those of a stage's first layers begin before those of its last ones."""

    def __init__(self) -> None:
        self._ranges: OrderedDict[range, tuple[PrefillRate, PrefillRate]] = OrderedDict()

    def observed(self, layers: range, tokens: int, took: PassTime) -> None:
        """A pass over so many tokens, as an offer of these layers saw it."""
        compute, tail = self._ranges.setdefault(layers, (PrefillRate(), PrefillRate()))
        compute.observed(tokens, took.compute)
        tail.observed(tokens, took.tail)
        self._ranges.move_to_end(layers)
        if len(self._ranges) > MAX_RANGES:
            self._ranges.popitem(last=False)

    def expected(self, layers: range, tokens: int) -> PassTime:
        """Of the next one; `UNKNOWN` before the first one."""
        if layers not in self._ranges:
            return UNKNOWN
        compute, tail = self._ranges[layers]
        return PassTime(compute.seconds(tokens), tail.seconds(tokens))
