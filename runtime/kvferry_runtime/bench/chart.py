"""A line chart, in the colours and with the text of `trace.svg`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from kvferry_runtime.bench.scale import Axis, Scale
from kvferry_runtime.trace.svg import SERIES, Picture

_WIDTH, _HEIGHT = 760.0, 430.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 72.0, 170.0, 66.0, 54.0
_LABEL_HEIGHT = 16.0
_TICKS = 18.0
"""From an axis down to the numbers below it."""

Point = tuple[float, float]


class Style(Enum):
    LINE = auto()
    RINGS = auto()
    """Dashed, over what lies below."""
    BOUND = auto()
    """A limit or an ideal: dashed, without points."""


@dataclass(frozen=True, slots=True)
class Series:
    """points: (x, y) in order of x. target: of the same values, a line to be reached; empty for none.

    notes: a word for each point, in a row below the numbers of the axis; or none at all.
    """

    name: str
    points: tuple[Point, ...]
    style: Style = Style.LINE
    target: tuple[Point, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> tuple[str, ...]:
        """Lines of text."""
        return (self.name, f"target {self.target[0][1]:g}") if self.target else (self.name,)


def lines(title: str, subtitle: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """An SVG document. series: at least one with a point."""
    points = [point for item in series for point in (*item.points, *item.target)]
    across = Scale(x, (point[0] for point in points), _LEFT, _WIDTH - _RIGHT)
    noted = [item for item in series if item.notes]
    bottom = _HEIGHT - _BOTTOM - len(noted) * _LABEL_HEIGHT
    up = Scale(y, (point[1] for point in points), bottom, _TOP)
    picture = Picture(_WIDTH, _HEIGHT, title, f"{subtitle}. {_told(x, y, series)}")
    picture.text(_LEFT, 24, title, style="title")
    picture.text(_LEFT, 43, subtitle, style="faint")
    _axes(picture, x, y, across, up)
    coloured = [item.name for item in series if item.style is not Style.BOUND]
    colours = dict(zip(coloured, SERIES * len(series), strict=False))
    for row, item in enumerate(noted, start=1):
        _notes(picture, item, bottom + _TICKS + row * _LABEL_HEIGHT, across)
    for item in series:
        _draw(picture, item, colours.get(item.name, "grey"), x, across, up)
    for item, place in _labels([item for item in series if item.points], up):
        _label(picture, item, place, colours.get(item.name, "grey"))
    return picture.document()


def _told(x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """The same in words."""
    told = []
    for item in series:
        notes = [f" ({note})" for note in item.notes] or [""] * len(item.points)
        points = [f"{x.text(at)}: {value:.3g}{note}" for (at, value), note in zip(item.points, notes, strict=True)]
        told.append(f"{', '.join(item.label)}: {', '.join(points)}")
    return f"Across: {x.label}. Up: {y.label}. {'; '.join(told)}."


def _axes(picture: Picture, x: Axis, y: Axis, across: Scale, up: Scale) -> None:
    for value, text in across.ticks():
        picture.line([(across.at(value), up.start), (across.at(value), up.stop)], "grid")
        picture.text(across.at(value), up.start + _TICKS, text, anchor="middle", style="faint")
    for value, text in up.ticks():
        picture.line([(across.start, up.at(value)), (across.stop, up.at(value))], "grid")
        picture.text(_LEFT - 8, up.at(value) + 4, text, anchor="end", style="faint")
    picture.text((across.start + across.stop) / 2, _HEIGHT - 12, x.label, anchor="middle")
    picture.text(18, (up.start + up.stop) / 2, y.label, anchor="middle", turned=True)


def _notes(picture: Picture, item: Series, y: float, across: Scale) -> None:
    picture.text(_LEFT - 16, y, f"{item.name}:", anchor="end", style="faint")
    for (x, _), note in zip(item.points, item.notes, strict=True):
        picture.text(across.at(x), y, note, anchor="middle", style="faint")


def _draw(picture: Picture, item: Series, colour: str, of: Axis, across: Scale, up: Scale) -> None:
    places = [(across.at(x), up.at(y)) for x, y in item.points]
    if item.target:
        picture.line([(across.at(x), up.at(y)) for x, y in item.target], colour, dashed=True)
    picture.line(places, colour, width=2, dashed=item.style is not Style.LINE)
    if item.style is Style.BOUND:
        return
    rings = item.style is Style.RINGS
    for (x, y), (value_x, value_y) in zip(places, item.points, strict=True):
        picture.circle(x, y, 6 if rings else 3.5, colour, f"{item.name}: {of.text(value_x)}, {value_y:.4g}", rings)


def _labels(series: Sequence[Series], up: Scale) -> list[tuple[Series, float]]:
    """Each at the height of its last point, moved apart where they would touch, and up where they would go below."""
    ordered = sorted(series, key=lambda item: up.at(item.points[-1][1]))
    heights = [len(item.label) * _LABEL_HEIGHT for item in ordered]
    places: list[float] = []
    for index, item in enumerate(ordered):
        least = places[-1] + heights[index - 1] if places else _TOP
        places.append(max(up.at(item.points[-1][1]), least))
    most = up.start + _LABEL_HEIGHT
    for index in reversed(range(len(places))):
        most -= heights[index]
        places[index] = most = min(places[index], most)
    return list(zip(ordered, places, strict=True))


def _label(picture: Picture, item: Series, place: float, colour: str) -> None:
    left = _WIDTH - _RIGHT + 14
    if item.style is Style.BOUND:
        picture.line([(left - 7, place), (left + 7, place)], colour, width=2, dashed=True)
    else:
        picture.circle(left, place, 4, colour, hollow=item.style is Style.RINGS)
    for index, text in enumerate(item.label):
        picture.text(left + 12, place + 4 + index * _LABEL_HEIGHT, text, style="faint" if index else "")
