"""Figures as other tools read them (one JSON object a line, stable names), and sizes as people write them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from kvferry_runtime.errors import SettingsError

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"([0-9]+)\s*(B|KiB|MiB|GiB)")


@dataclass(frozen=True, slots=True)
class Figure:
    """against: the peer or limit measured in the same run, None without one. ratio: value / against, or ours / theirs.
    n: how many measurements the value is the median of."""

    name: str
    value: float
    unit: str
    against: float | None
    ratio: float | None
    n: int

    def line(self) -> str:
        """One JSON object with numbers of four significant digits."""
        rounded = {
            key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in asdict(self).items()
        }
        return json.dumps(rounded)


def in_turn(name: str, unit: str, ours: Sequence[float], others: Sequence[float]) -> Figure:
    """Of two that were measured in turn: medians, and the median of the ratios of one round each, since other programs
    slow both of a round down."""
    ratios = [one / other for one, other in zip(ours, others, strict=True)]
    return Figure(name, median(ours), unit, median(others), median(ratios), len(ours))


def parse_size(text: str) -> int:
    """Bytes of "64KiB", "1MiB". Raises SettingsError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise SettingsError(f"size {text!r}: write a number and one of {', '.join(_UNITS)}, e.g. 64KiB")
    return int(match[1]) * _UNITS[match[2]]


def format_size(size: int) -> str:
    """The shortest text that `parse_size` reads back."""
    for unit, factor in reversed(_UNITS.items()):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    raise AssertionError("every size is a number of bytes")


def table(figures: list[Figure]) -> str:
    """For people: one line a figure."""
    rows = [("figure", "value", "unit", "against", "ratio", "n")]
    for figure in figures:
        against = "–" if figure.against is None else f"{figure.against:.3f}"
        ratio = "–" if figure.ratio is None else f"{figure.ratio:.2f}"
        rows.append((figure.name, f"{figure.value:.3f}", figure.unit, against, ratio, str(figure.n)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(_aligned(row, widths) for row in rows)


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    """Texts (name, unit) to the left, numbers to the right."""
    cells = zip(row, widths, strict=True)
    return "  ".join(
        cell.ljust(width) if column in (0, 2) else cell.rjust(width) for column, (cell, width) in enumerate(cells)
    )
