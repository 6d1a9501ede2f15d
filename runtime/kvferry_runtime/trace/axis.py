"""Round numbers for the axes of pictures. Pure."""

from __future__ import annotations

import math


def ticks(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within [low, high], roughly `about` of them. high > low."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def label(value: float) -> str:
    """A short number: 0.5, 20, 1.2e+06."""
    return f"{value:g}"
