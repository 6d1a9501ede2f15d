"""A timeline as a picture: a block for each transfer, a row for each layer, a colour for each phase. Pure.

A row has a strip for each phase, so that what overlaps in time stays apart: computed at the top, decoded at the bottom.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kvferry_runtime.trace import axis
from kvferry_runtime.trace.events import Event, Phase, Trace
from kvferry_runtime.trace.svg import Picture

MAX_TRANSFERS = 4
"""The last ones are drawn; more would be a picture that nobody reads."""

COLOURS = {
    Phase.COMPUTED: "grey",
    Phase.GATHERED: "brown",
    Phase.ENCODED: "purple",
    Phase.SENT: "blue",
    Phase.RECEIVED: "orange",
    Phase.DECODED: "green",
}

_WIDTH, _LEFT, _RIGHT, _TOP = 1000.0, 70.0, 20.0, 76.0
_STRIP = 4.0
_ROW = len(Phase) * _STRIP + 4
_AXIS = 64.0
_MIN_WIDTH = 0.75
"""Of what has no length, or one that would not show."""


def draw(traces: Sequence[Trace]) -> str:
    """An SVG document. Processes of one host share a clock; events of other hosts begin at their transfer's zero."""
    transfers = _transfers(traces)
    shown = dict(list(transfers.items())[-MAX_TRANSFERS:])
    heights = {transfer: len(_layers(events)) * _ROW + _AXIS for transfer, events in shown.items()}
    title = f"Timeline of {len(shown)} transfers"
    picture = Picture(_WIDTH, _TOP + sum(heights.values()), title, _told(shown))
    _legend(picture, len(transfers), len(shown))
    top = _TOP
    for transfer, events in shown.items():
        _block(picture, transfer, events, top)
        top += heights[transfer]
    return picture.document()


def _told(shown: Mapping[str, Sequence[Event]]) -> str:
    """The same in words, in short."""
    return " ".join(
        f"Transfer {transfer}: {len(_layers(events))} layers in {max(event.ended_ns for event in events) / 1e6:.3g} ms."
        for transfer, events in shown.items()
    )


def _transfers(traces: Sequence[Trace]) -> dict[str, list[Event]]:
    """Events of each transfer, in order of their beginnings, in nanoseconds since its first event on the same host."""
    by_clock: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for trace in traces:
        for event in trace.events:
            by_clock[event.transfer, trace.clock].append(event)
    ordered = sorted(by_clock.items(), key=lambda item: min(event.began_ns for event in item[1]))
    moved: dict[str, list[Event]] = defaultdict(list)
    for (transfer, _), events in ordered:
        zero = min(event.began_ns for event in events)
        moved[transfer] += [_since(event, zero) for event in events]
    return moved


def _since(event: Event, zero: int) -> Event:
    return Event(
        event.phase, event.transfer, event.layer, event.layer_count, event.token_start, event.token_stop,
        event.sequence, event.began_ns - zero, event.ended_ns - zero, event.size,
    )  # fmt: skip


def _layers(events: Sequence[Event]) -> list[int]:
    return sorted({layer for event in events for layer in event.layers})


def _block(picture: Picture, transfer: str, events: Sequence[Event], top: float) -> None:
    """A transfer with a time axis of its own: a long one would leave nothing of a short one."""
    places = {layer: top + row * _ROW for row, layer in enumerate(_layers(events))}
    scale = (_WIDTH - _LEFT - _RIGHT) / max(1, max(event.ended_ns for event in events))
    _axis(picture, (_WIDTH - _LEFT - _RIGHT) / scale / 1e6, scale * 1e6, top, top + len(places) * _ROW)
    picture.text(_LEFT, top - 6, f"transfer {transfer}")
    for layer, y in places.items():
        picture.text(_LEFT - 8, y + _ROW / 2 + 3, str(layer), anchor="end", style="faint")
    strips = {phase: row * _STRIP for row, phase in enumerate(Phase)}
    for event in events:
        x = _LEFT + event.began_ns * scale
        width = max(_MIN_WIDTH, (event.ended_ns - event.began_ns) * scale)
        for layer in event.layers:
            picture.rectangle(x, places[layer] + strips[event.phase], width, _STRIP, COLOURS[event.phase], _tip(event))


def _tip(event: Event) -> str:
    tokens = f"tokens {event.token_start}–{event.token_stop}"
    chunk = "" if event.sequence < 0 else f", chunk {event.sequence}"
    return f"{event.phase.value}: layer {event.layer}{chunk}, {tokens}, {event.seconds * 1e3:.3f} ms"


def _legend(picture: Picture, found: int, shown: int) -> None:
    title = "KV on its way, a row for each layer"
    picture.text(
        _LEFT, 20, title if found == shown else f"{title}: the last {shown} of {found} transfers", style="title"
    )
    x = _LEFT
    for phase in Phase:
        picture.rectangle(x, 30, 10, 10, COLOURS[phase])
        picture.text(x + 14, 39, phase.value)
        x += 30 + 7 * len(phase.value)


def _axis(picture: Picture, milliseconds: float, scale: float, top: float, bottom: float) -> None:
    for tick in axis.ticks(0, milliseconds, 8):
        x = _LEFT + tick * scale
        picture.line([(x, top), (x, bottom)], "grid")
        picture.text(x, bottom + 16, axis.label(tick), anchor="middle", style="faint")
    picture.text(_WIDTH - _RIGHT, bottom + 32, "ms since its first event", anchor="end", style="faint")
