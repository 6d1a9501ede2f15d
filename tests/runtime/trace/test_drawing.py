"""Pictures are well-formed, show every event, and suit light and dark pages."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from kvferry_runtime.trace import axis, drawing
from kvferry_runtime.trace.events import Event, Phase, Trace
from kvferry_runtime.trace.svg import DARK, LIGHT, SERIES, Picture

SVG = "{http://www.w3.org/2000/svg}"


def _transfer(name: str, clock: str = "host") -> Trace:
    spans = [
        Event(phase, name, layer, 1, 0, 16, layer, 1000 * number + 100 * layer, 1000 * number + 100 * layer + 500)
        for layer in range(3)
        for number, phase in enumerate(Phase)
    ]
    return Trace("engine", clock, tuple(spans), 0)


def _tips(picture: str) -> list[str]:
    return [title.text or "" for title in ET.fromstring(picture).iter(f"{SVG}title")]


def test_every_event_is_there_with_what_it_is() -> None:
    tips = _tips(drawing.draw([_transfer("aa")]))
    assert sum(tip.startswith(phase.value) for tip in tips for phase in Phase) == 3 * len(Phase)
    assert "sent: layer 2, chunk 2, tokens 0–16, 0.001 ms" in tips


def test_a_chunk_of_several_layers_is_in_each_of_their_rows() -> None:
    event = Event(Phase.SENT, "aa", 4, 3, 0, 16, 0, 0, 10)
    tips = _tips(drawing.draw([Trace("sidecar", "host", (event,), 0)]))
    assert sum(tip.startswith("sent") for tip in tips) == 3


def test_many_transfers_are_cut_to_the_last_and_it_says_so() -> None:
    traces = [
        Trace("engine", "host", (Event(Phase.SENT, f"{number:02}", 0, 1, 0, 16, 0, number, number + 1),), 0)
        for number in range(20)
    ]
    picture = drawing.draw(traces)
    assert f"the last {drawing.MAX_TRANSFERS} of 20 transfers" in picture
    assert "transfer 19" in picture and "transfer 00" not in picture


def test_hosts_without_a_common_clock_begin_at_the_same_place() -> None:
    far = Trace("decode", "other", (Event(Phase.DECODED, "aa", 0, 1, 0, 16, 0, 10**15, 10**15 + 500),), 0)
    near = Trace("prefill", "host", (Event(Phase.SENT, "aa", 0, 1, 0, 16, 0, 0, 500),), 0)
    blocks = [item for item in ET.fromstring(drawing.draw([near, far])).iter(f"{SVG}rect") if len(item)]
    assert len({item.get("x") for item in blocks}) == 1


def test_nothing_at_all_is_a_picture_too() -> None:
    ET.fromstring(drawing.draw([]))


def test_text_and_attributes_are_escaped() -> None:
    picture = Picture(10, 10, '<a> & "b"', "<c>")
    picture.text(0, 0, "<script>&", style='x" onload="y')
    picture.rectangle(0, 0, 1, 1, "blue", "<&>")
    root = ET.fromstring(picture.document())
    (text,) = root.iter(f"{SVG}text")
    assert (text.text, text.get("onload")) == ("<script>&", None)


def test_both_themes_know_every_colour() -> None:
    assert LIGHT.keys() == DARK.keys()
    assert set(SERIES) | set(drawing.COLOURS.values()) <= LIGHT.keys()
    document = Picture(1, 1, "", "").document()
    assert "prefers-color-scheme:dark" in document
    assert all(colour in document for colour in (*LIGHT.values(), *DARK.values()))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 0.03, [0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03]),
        (120, 480, [200, 300, 400]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert axis.ticks(low, high, 6) == pytest.approx(expected)
