"""A chart of horizontal bars in groups, with a mark where each should reach. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvferry_runtime.bench.scale import Axis, Scale
from kvferry_runtime.trace.svg import SERIES, Picture

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 760.0, 120.0, 56.0, 66.0, 54.0
_MARGIN, _LEGEND = 20.0, 90.0
_BAR, _BETWEEN = 13.0, 14.0


@dataclass(frozen=True, slots=True)
class Bar:
    """target: what its length should be at least; None if nobody said."""

    length: float
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """note: a second line below the name. bars: one for each kind."""

    name: str
    note: str
    bars: tuple[Bar, ...]


def bars(title: str, subtitle: str, x: Axis, kinds: Sequence[str], groups: Sequence[Group]) -> str:
    """An SVG document. kinds: names of the bars of a group, in order. groups: at least one."""
    every = [bar for group in groups for bar in group.bars]
    across = Scale(x, [value for bar in every for value in (bar.length, bar.target or 0.0)], _LEFT, _WIDTH - _RIGHT)
    step = len(kinds) * _BAR + _BETWEEN
    bottom = _TOP + len(groups) * step
    picture = Picture(_WIDTH, bottom + _BOTTOM, title, f"{subtitle}. {_told(x, kinds, groups)}")
    picture.text(_MARGIN, 24, title, style="title")
    picture.text(_MARGIN, 43, subtitle, style="faint")
    for value, text in across.ticks():
        picture.line([(across.at(value), _TOP), (across.at(value), bottom)], "grid")
        picture.text(across.at(value), bottom + 18, text, anchor="middle", style="faint")
    picture.text((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 42, x.label, anchor="middle")
    for index, kind in enumerate(kinds):
        left = _WIDTH - _LEGEND * (len(kinds) - index)
        picture.rectangle(left, 34, 10, 10, SERIES[index])
        picture.text(left + 15, 43, kind)
    for index, group in enumerate(groups):
        _group(picture, group, _TOP + index * step + _BETWEEN / 2, across, kinds)
    return picture.document()


def _told(x: Axis, kinds: Sequence[str], groups: Sequence[Group]) -> str:
    """The same in words."""
    lists = "; ".join(
        f"{group.name}, {group.note}: "
        + ", ".join(f"{kind} {bar.length:.2f}" for kind, bar in zip(kinds, group.bars, strict=True))
        for group in groups
    )
    return f"Bars: {x.label}. {lists}."


def _group(picture: Picture, group: Group, top: float, across: Scale, kinds: Sequence[str]) -> None:
    middle = top + len(kinds) * _BAR / 2
    picture.text(_LEFT - 10, middle - 2, group.name, anchor="end")
    picture.text(_LEFT - 10, middle + 12, group.note, anchor="end", style="faint")
    for index, (kind, bar) in enumerate(zip(kinds, group.bars, strict=True)):
        y = top + index * _BAR
        end = across.at(bar.length)
        picture.rectangle(_LEFT, y, end - _LEFT, _BAR - 1, SERIES[index], f"{group.name}, {kind}: {bar.length:.4g}")
        picture.text(end + 6, y + 10, f"{bar.length:.2f}", style="faint")
        if bar.target is not None:
            at = across.at(bar.target)
            picture.line([(at, y - 1), (at, y + _BAR)], "ink", width=2)
