"""From values to places on a picture, and where an axis has its numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvferry_runtime.trace import axis

_STEPS = (1, 2, 5)
_ABOUT = 6
"""Numbers on an axis that names none."""
_MARGIN = 0.06
"""Left free at the ends, as a share of the axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """label: with the unit. logarithmic: all values above zero. low: where it begins at the latest; None for the least
    value. named: value to text for the places that have one, round numbers if empty.
    """

    label: str
    logarithmic: bool = False
    low: float | None = None
    named: Mapping[float, str] = field(default_factory=dict)

    def text(self, value: float) -> str:
        """Its name, or a short number."""
        return self.named.get(value) or axis.label(value)


class Scale:
    """An axis laid out for some values, at least one, between two places in pixels, `start` and `stop`."""

    def __init__(self, of: Axis, values: Iterable[float], start: float, stop: float) -> None:
        self._of = of
        known = [*values, *of.named, *([] if of.low is None else [of.low])]
        low, high = self._even(min(known)), self._even(max(known))
        margin = (high - low or 1.0) * _MARGIN
        self._low = low if of.low is not None else low - margin
        self._high = high + margin
        self.start, self.stop = start, stop

    def at(self, value: float) -> float:
        """In pixels."""
        return self.start + (self._even(value) - self._low) / (self._high - self._low) * (self.stop - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Values and how they are written."""
        return [(tick, self._of.text(tick)) for tick in self._of.named or self._round()]

    def _even(self, value: float) -> float:
        """On what equal steps are equally long on this axis."""
        return math.log10(value) if self._of.logarithmic else value

    def _round(self) -> list[float]:
        if not self._of.logarithmic:
            return axis.ticks(self._low, self._high, _ABOUT)
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        ticks = [10.0**power * step for power in powers for step in _STEPS]
        return [tick for tick in ticks if self._low <= math.log10(tick) <= self._high]
