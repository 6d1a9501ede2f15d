"""A line chart. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvferry_runtime.trace import axis
from kvferry_runtime.trace.svg import SERIES, Picture

_WIDTH, _HEIGHT = 760.0, 420.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 150.0, 44.0, 56.0
_LABEL_HEIGHT = 15.0


@dataclass(frozen=True, slots=True)
class Series:
    """points: (x, y) in order of x. marked: drawn as rings over the others, dashed."""

    name: str
    points: tuple[tuple[float, float], ...]
    marked: bool = False


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    logarithmic: bool = False,
    target: float | None = None,
) -> str:
    """An SVG document, with a dashed line at the target.

    series: at least one with a point. logarithmic: both axes, unless a target is given, then x alone; a share needs no
    more. All values above zero where logarithmic.
    """
    points = [point for item in series for point in item.points]
    logarithmic_y = logarithmic and target is None and min(y for _, y in points) > 0
    x_at, x_ticks = _scale([x for x, _ in points], logarithmic, _LEFT, _WIDTH - _RIGHT, from_zero=False)
    values = [y for _, y in points] + ([] if target is None else [target])
    y_at, y_ticks = _scale(values, logarithmic_y, _HEIGHT - _BOTTOM, _TOP, from_zero=not logarithmic_y)
    picture = Picture(_WIDTH, _HEIGHT, title)
    picture.text(_LEFT, 24, title, style="title")
    for tick in x_ticks:
        picture.line([(x_at(tick), _TOP), (x_at(tick), _HEIGHT - _BOTTOM)], "grid")
        picture.text(x_at(tick), _HEIGHT - _BOTTOM + 18, axis.label(tick), anchor="middle", style="faint")
    for tick in y_ticks:
        picture.line([(_LEFT, y_at(tick)), (_WIDTH - _RIGHT, y_at(tick))], "grid")
        picture.text(_LEFT - 8, y_at(tick) + 4, axis.label(tick), anchor="end", style="faint")
    picture.text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 14, x_label, anchor="middle")
    picture.text(16, (_TOP + _HEIGHT - _BOTTOM) / 2, y_label, anchor="middle", turned=True)
    if target is not None:
        picture.line([(_LEFT, y_at(target)), (_WIDTH - _RIGHT, y_at(target))], "red", dashed=True)
    colours = dict(zip((item.name for item in series), SERIES * len(series), strict=False))
    for item in series:
        _draw(picture, item, colours[item.name], x_at, y_at)
    for name, y in _labels(series, y_at):
        picture.text(_WIDTH - _RIGHT + 24, y + 4, name)
        picture.circle(_WIDTH - _RIGHT + 14, y, 4, colours[name])
    return picture.document()


def _draw(
    picture: Picture,
    item: Series,
    colour: str,
    x_at: Callable[[float], float],
    y_at: Callable[[float], float],
) -> None:
    places = [(x_at(x), y_at(y)) for x, y in item.points]
    picture.line(places, colour, width=2, dashed=item.marked)
    for (x, y), (value_x, value_y) in zip(places, item.points, strict=True):
        picture.circle(x, y, 6 if item.marked else 3.5, colour, f"{item.name}: {value_x:g}, {value_y:.4g}", item.marked)


def _labels(series: Sequence[Series], y_at: Callable[[float], float]) -> list[tuple[str, float]]:
    """Names at the height of their last points, moved apart where they would touch; in order of height."""
    placed: list[tuple[str, float]] = []
    for item in sorted((item for item in series if item.points), key=lambda item: y_at(item.points[-1][1])):
        y = y_at(item.points[-1][1])
        placed.append((item.name, max(y, placed[-1][1] + _LABEL_HEIGHT) if placed else y))
    return placed


def _scale(
    values: Sequence[float], logarithmic: bool, start: float, stop: float, from_zero: bool
) -> tuple[Callable[[float], float], list[float]]:
    """From a value to a place between start and stop, and where to put numbers."""
    low, high = min(values), max(values)
    if logarithmic:
        low, high = math.log10(low), math.log10(high)
        margin = (high - low or 1.0) * 0.04
        low, high = low - margin, high + margin
        ticks = [10.0**power * step for power in range(math.floor(low), math.ceil(high) + 1) for step in (1, 2, 5)]
        shown = [tick for tick in ticks if low <= math.log10(tick) <= high]
        return lambda value: start + (math.log10(value) - low) / (high - low) * (stop - start), shown
    low = min(0.0, low) if from_zero else low
    high = high + (high - low or 1.0) * 0.05
    return lambda value: start + (value - low) / (high - low) * (stop - start), axis.ticks(low, high, 6)
