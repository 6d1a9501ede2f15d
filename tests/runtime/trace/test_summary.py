"""The numbers of a timeline, on timelines small enough to count by hand."""

from __future__ import annotations

import pytest

from kvferry_runtime.trace import summary
from kvferry_runtime.trace.events import Event, Phase, Trace

MS = 1_000_000


def _event(phase: Phase, began: int, ended: int, transfer: str = "a", size: int = 0) -> Event:
    return Event(phase, transfer, 0, 1, 0, 16, 0, began * MS, ended * MS, size)


def _trace(*found: Event, clock: str = "host", dropped: int = 0) -> Trace:
    return Trace("process", clock, found, dropped)


COMPUTED = _event(Phase.COMPUTED, 0, 10)


@pytest.mark.parametrize(
    ("sent", "wire", "share"),
    [
        ([(2, 8)], 0.006, 1.0),
        ([(10, 20)], 0.010, 0.0),
        ([(5, 15)], 0.010, 0.5),
        ([(0, 6), (4, 8), (12, 14)], 0.010, 0.8),
        ([(2, 4), (2, 4)], 0.002, 1.0),
    ],
)
def test_the_hidden_share(sent: list[tuple[int, int]], wire: float, share: float) -> None:
    """Of the time with at least one chunk on the wire, the part before the forward pass ended."""
    found = summary.summarise([_trace(COMPUTED), _trace(*(_event(Phase.SENT, began, ended) for began, ended in sent))])
    assert found.wire_seconds == pytest.approx(wire)
    assert found.hidden_share == pytest.approx(share)


def test_each_transfer_counts_against_its_own_pass() -> None:
    found = summary.summarise(
        [
            _trace(COMPUTED, _event(Phase.COMPUTED, 0, 100, "b")),
            _trace(_event(Phase.SENT, 20, 30), _event(Phase.SENT, 20, 30, "b")),
        ]
    )
    assert (found.transfers, found.hidden_share) == (2, pytest.approx(0.5))


@pytest.mark.parametrize(
    "traces",
    [
        [_trace(COMPUTED, clock="one"), _trace(_event(Phase.SENT, 0, 5), clock="two")],
        [_trace(_event(Phase.SENT, 0, 5))],
        [_trace(COMPUTED)],
        [],
    ],
)
def test_what_cannot_be_compared_gives_no_share(traces: list[Trace]) -> None:
    """Clocks of two hosts have nothing in common."""
    found = summary.summarise(traces)
    assert found.hidden_share is None
    assert "hidden: unknown" in summary.table(found)


def test_times_and_bytes_of_a_phase() -> None:
    found = summary.summarise([_trace(*(_event(Phase.DECODED, 0, n, size=1000) for n in range(1, 101)), dropped=4)])
    (times,) = found.phases
    assert (times.count, times.size, times.total) == (100, 100_000, pytest.approx(5.05))
    assert (times.p50, times.p99) == (pytest.approx(0.05), pytest.approx(0.099))
    assert "4 older events were dropped" in summary.table(found)


def test_instants_have_no_length_to_show() -> None:
    instants = (_event(Phase.RECEIVED, moment, moment, size=500) for moment in (1, 2))
    table = summary.table(summary.summarise([_trace(COMPUTED, *instants)]))
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines()}
    assert rows["received"] == ["2", "0.00", "-", "-", "-"]
    assert rows["computed"] == ["1", "0.00", "10.00", "10.000", "10.000"]


@pytest.mark.parametrize(
    ("count", "share", "rank"), [(1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 2), (100, 0.99, 99), (7, 0.99, 7)]
)
def test_percentiles_are_nearest_ranks(count: int, share: float, rank: int) -> None:
    assert summary.percentile([float(value) for value in range(count, 0, -1)], share) == rank
