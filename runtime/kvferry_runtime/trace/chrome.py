"""Timelines in the Trace Event Format (JSON), which Perfetto and chrome://tracing open. Pure.

The format: "Trace Event Format", Google, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
Used of it: the JSON object form, `traceEvents` with complete events (`ph` "X": `ts` and `dur` in microseconds, with a
fraction), instants (`ph` "i") where a phase has no length, and metadata events (`ph` "M") that name processes and
threads. Each process of ours is a process there, each phase a thread, or several where its spans overlap. What our
reader needs beyond that is in `args` of each event and in `otherData`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from kvferry_runtime.errors import SettingsError
from kvferry_runtime.trace.events import Event, Phase, Trace

CATEGORY = "kv"
_FORMAT = "kvferry timeline 1"
_NUMBERS = ("layer", "layer_count", "token_start", "token_stop", "sequence", "size")
_MAX_ROWS = 1000
"""Threads for one phase; more spans at one time are drawn over each other."""


def dump(traces: Sequence[Trace]) -> str:
    """One JSON document for one process or for several."""
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "format": _FORMAT,
            "processes": [
                {"pid": pid, "name": trace.process, "clock": trace.clock, "dropped": trace.dropped}
                for pid, trace in enumerate(traces, start=1)
            ],
        },
        "traceEvents": [event for pid, trace in enumerate(traces, start=1) for event in _process(pid, trace)],
    }
    return json.dumps(document, separators=(",", ":"))


def load(text: str, source: str) -> list[Trace]:
    """Read what `dump` wrote.

    source: where it came from, for the message.

    Raises:
        SettingsError: it is no trace of ours.
    """
    wrong = f"{source} is not a trace that kvferry-runtime wrote"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise SettingsError(f"{wrong}: it is not JSON") from None
    try:
        found = document["otherData"]["format"]
        if found != _FORMAT:
            raise SettingsError(f"{wrong}, or not this version, which reads {_FORMAT!r}: its format is {found!r}")
        spans = [item for item in document["traceEvents"] if item["ph"] in ("X", "i")]
        return [
            Trace(
                process=str(process["name"]),
                clock=str(process["clock"]),
                events=tuple(_event(span) for span in spans if span["pid"] == process["pid"]),
                dropped=int(process["dropped"]),
            )
            for process in document["otherData"]["processes"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SettingsError(f"{wrong}: parts that each trace has are missing in it, or are no such parts") from None


def _process(pid: int, trace: Trace) -> Iterator[dict[str, Any]]:
    yield _name("process_name", pid, 0, trace.process)
    for number, phase in enumerate(Phase, start=1):
        events = sorted((event for event in trace.events if event.phase is phase), key=lambda event: event.began_ns)
        for row, row_events in enumerate(_rows(events)):
            thread = number * _MAX_ROWS + row
            yield _name("thread_name", pid, thread, phase.value if row == 0 else f"{phase.value} ({row + 1})")
            for event in row_events:
                yield _span(pid, thread, event)


def _rows(events: Sequence[Event]) -> list[list[Event]]:
    """Spans that overlap (chunks in flight) apart, since viewers draw a thread's spans nested or not at all.

    events: in order of their beginning.
    """
    rows: list[list[Event]] = []
    for event in events:
        free = next((row for row in rows if row[-1].ended_ns <= event.began_ns), None)
        if free is not None:
            free.append(event)
        elif len(rows) < _MAX_ROWS:
            rows.append([event])
        else:
            rows[-1].append(event)
    return rows


def _name(kind: str, pid: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": thread, "args": {"name": name}}


def _span(pid: int, thread: int, event: Event) -> dict[str, Any]:
    length = event.ended_ns - event.began_ns
    span = {
        "ph": "X" if length else "i",
        "name": _label(event),
        "cat": CATEGORY,
        "pid": pid,
        "tid": thread,
        "ts": event.began_ns / 1000,
        "args": {"phase": event.phase.value, "transfer": event.transfer}
        | {key: getattr(event, key) for key in _NUMBERS},
    }
    # An instant says how wide it is drawn instead: "t", within its thread.
    return span | ({"dur": length / 1000} if length else {"s": "t"})


def _label(event: Event) -> str:
    layers = f"{event.layer}" if event.layer_count == 1 else f"{event.layer}–{event.layers[-1]}"
    chunk = "" if event.sequence < 0 else f" #{event.sequence}"
    return f"layer {layers}{chunk}"


def _event(span: dict[str, Any]) -> Event:
    arguments = span["args"]
    began_ns = round(span["ts"] * 1000)
    return Event(
        phase=Phase(arguments["phase"]),
        began_ns=began_ns,
        ended_ns=began_ns + round(span.get("dur", 0) * 1000),
        transfer=str(arguments["transfer"]),
        **{key: int(arguments[key]) for key in _NUMBERS},
    )
