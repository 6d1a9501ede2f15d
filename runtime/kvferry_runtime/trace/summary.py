"""What a timeline says in numbers: how much of the wire lay behind the forward pass, and where the time went. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvferry_runtime.trace.events import Event, Phase, Trace


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """count: of events. total, p50, p99: seconds; the total counts what went on at the same time more than once."""

    phase: Phase
    count: int
    size: int
    total: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Summary:
    """hidden_share: of the time in which a chunk of a transfer was on the wire, that before its forward pass ended, 0
    to 1; None where no sender and its engine were recorded. wire_seconds: that time, over all transfers."""

    transfers: int
    events: int
    dropped: int
    wire_seconds: float
    hidden_share: float | None
    phases: tuple[PhaseTimes, ...]


def summarise(traces: Sequence[Trace]) -> Summary:
    """Of everything in these traces. Those of one host are put together, since one transfer is in several of them."""
    events = [event for trace in traces for event in trace.events]
    busy = hidden = 0
    for spans in _by_clock_and_transfer(traces).values():
        computed = [event.ended_ns for event in spans if event.phase is Phase.COMPUTED]
        sent = _union((event.began_ns, event.ended_ns) for event in spans if event.phase is Phase.SENT)
        if computed and sent:
            busy += _length(sent)
            hidden += _length([(start, min(stop, max(computed))) for start, stop in sent if start < max(computed)])
    return Summary(
        transfers=len({event.transfer for event in events}),
        events=len(events),
        dropped=sum(trace.dropped for trace in traces),
        wire_seconds=busy / 1e9,
        hidden_share=hidden / busy if busy else None,
        phases=tuple(_times(phase, found) for phase in Phase if (found := [e for e in events if e.phase is phase])),
    )


def table(summary: Summary) -> str:
    """For people: one line for each phase, then what follows from them."""
    lines = [f"{'phase':<10}{'events':>8}{'MB':>11}{'total ms':>12}{'p50 ms':>10}{'p99 ms':>10}"]
    for times in summary.phases:
        total, p50, p99 = f"{times.total * 1e3:.2f}", f"{times.p50 * 1e3:.3f}", f"{times.p99 * 1e3:.3f}"
        if not times.total:  # instants: they have no length to speak of
            total = p50 = p99 = "-"
        lines.append(f"{times.phase.value:<10}{times.count:>8}{times.size / 1e6:>11.2f}{total:>12}{p50:>10}{p99:>10}")
    share = "unknown" if summary.hidden_share is None else f"{summary.hidden_share:.1%}"
    lines.append(f"{summary.transfers} transfers; {summary.wire_seconds * 1e3:.2f} ms on the wire, hidden: {share}")
    if summary.dropped:
        lines.append(f"{summary.dropped} older events were dropped: the recorders keep the newest")
    return "\n".join(lines)


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least `share` of them do not exceed. values: not empty, in any order."""
    ranked = sorted(values)
    return ranked[max(0, -int(-share * len(ranked) // 1) - 1)]


def _times(phase: Phase, events: Sequence[Event]) -> PhaseTimes:
    seconds = [event.seconds for event in events]
    size = sum(event.size for event in events)
    return PhaseTimes(phase, len(events), size, sum(seconds), percentile(seconds, 0.5), percentile(seconds, 0.99))


def _by_clock_and_transfer(traces: Iterable[Trace]) -> dict[tuple[str, str], list[Event]]:
    found: dict[tuple[str, str], list[Event]] = {}
    for trace in traces:
        for event in trace.events:
            found.setdefault((trace.clock, event.transfer), []).append(event)
    return found


def _union(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans that touch or overlap put together, in order."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _length(spans: Iterable[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in spans)
