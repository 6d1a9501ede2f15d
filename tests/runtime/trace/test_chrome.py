"""Traces open in other people's viewers, and are read back by ours without a loss."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.errors import SettingsError
from kvferry_runtime.trace import chrome
from kvferry_runtime.trace.events import Event, Phase, Trace

counts = st.integers(0, 1 << 20)
times = st.integers(0, 1 << 50)
"""Nanoseconds; 13 days of a host's uptime, within what a double holds as microseconds with three digits."""


@st.composite
def events(draw: st.DrawFn) -> Event:
    began = draw(times)
    return Event(
        phase=draw(st.sampled_from(Phase)),
        transfer=draw(st.text("0123456789abcdef", min_size=32, max_size=32)),
        layer=draw(counts),
        layer_count=draw(st.integers(1, 64)),
        token_start=draw(counts),
        token_stop=draw(counts),
        sequence=draw(st.integers(-1, 1 << 20)),
        began_ns=began,
        ended_ns=began + draw(st.integers(0, 1 << 40)),
        size=draw(counts),
    )


traces = st.builds(Trace, st.text(max_size=20), st.uuids().map(str), st.lists(events()).map(tuple), counts)


@given(st.lists(traces, max_size=3))
def test_what_is_written_is_read_back(written: list[Trace]) -> None:
    read = chrome.load(chrome.dump(written), "a.json")
    assert [(trace.process, trace.clock, trace.dropped) for trace in read] == [
        (trace.process, trace.clock, trace.dropped) for trace in written
    ]
    for ours, theirs in zip(read, written, strict=True):
        assert sorted(ours.events, key=repr) == sorted(theirs.events, key=repr)


def _span(began: int, ended: int, phase: Phase = Phase.SENT) -> Event:
    return Event(phase, "ab" * 16, 3, 1, 0, 16, 7, began, ended, 4096)


NANOSECOND = 1e-3
"""In the format's microseconds, which are floats."""


def _document(*found: Event) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(chrome.dump([Trace("prefill sidecar", "clock", found, 0)]))
    return document


def test_the_document_is_as_the_trace_event_format_says() -> None:
    document = _document(_span(5_000, 7_500), _span(9_000, 9_000, Phase.RECEIVED))
    named = {(item["name"], item["args"]["name"]) for item in document["traceEvents"] if item["ph"] == "M"}
    assert named == {("process_name", "prefill sidecar"), ("thread_name", "sent"), ("thread_name", "received")}
    span, instant = (item for item in document["traceEvents"] if item["ph"] != "M")
    assert (span["ph"], span["ts"], span["dur"], span["name"]) == ("X", 5.0, 2.5, "layer 3 #7")
    assert (instant["ph"], instant["ts"], instant["s"]) == ("i", 9.0, "t")
    assert span["args"]["transfer"] == "ab" * 16
    for item in document["traceEvents"]:
        assert isinstance(item["pid"], int) and isinstance(item["tid"], int)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 50)), min_size=1, max_size=30))
def test_spans_of_one_thread_never_overlap(spans: list[tuple[int, int]]) -> None:
    """Viewers take overlapping spans of one thread for nested ones, and drop what does not nest."""
    document = _document(*(_span(began, began + length) for began, length in spans))
    ends: dict[int, float] = {}
    for item in document["traceEvents"]:
        if item["ph"] == "X":
            assert item["ts"] >= ends.get(item["tid"], 0.0) - NANOSECOND
            ends[item["tid"]] = item["ts"] + item["dur"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is not JSON"),
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "parts that each trace has are missing"),
        ("{}", "parts that each trace has are missing"),
        ("null", "parts that each trace has are missing"),
        ('{"traceEvents":[]}', "parts that each trace has are missing"),
        ('{"otherData":{"format":"another"},"traceEvents":[]}', "its format is 'another'"),
    ],
)
def test_what_is_no_trace_of_ours_is_told_why_in_words(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=rf"x\.json is not a trace that kvferry-runtime wrote.*{why}") as caught:
        chrome.load(text, "x.json")
    assert "Error" not in str(caught.value)


def test_other_versions_are_told_which_one_is_read() -> None:
    text = '{"otherData":{"format":"kvferry timeline 0"},"traceEvents":[]}'
    with pytest.raises(SettingsError, match=r"this version, which reads 'kvferry timeline 1': .* 'kvferry timeline 0'"):
        chrome.load(text, "x.json")
