"""Figures that were written as JSON lines, found again by their names. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kvferry_runtime.bench.rate import parse
from kvferry_runtime.errors import SettingsError

Line = Mapping[str, object]

_RATE = r"(?P<rate>[0-9.]+[kmg]bit)"


def by_name(lines: Sequence[Line], pattern: str, key: str = "value") -> dict[str, float]:
    """The figure's value (or ratio) by the only group of the pattern, for names that match the whole of it."""
    return {match[1]: _number(line[key]) for line in lines if (match := re.fullmatch(pattern, str(line["name"])))}


def by_rate(lines: Sequence[Line], pattern: str, key: str = "value") -> dict[str, dict[float, float]]:
    """Group `series` of the pattern to rate in Mbit/s to the figure's value (or ratio). "{rate}" stands for a rate."""
    found: dict[str, dict[float, float]] = {}
    for line in lines:
        match = re.fullmatch(pattern.replace("{rate}", _RATE), str(line["name"]))
        if match:
            found.setdefault(match["series"], {})[parse(match["rate"]).bits / 1e6] = _number(line[key])
    return found


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise SettingsError(f"a figure has {value!r} where a number is needed")
    return float(value)
