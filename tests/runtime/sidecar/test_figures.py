"""Lanes, wire time and records: the figures that people read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_contract.config import TransportKind
from kvferry_runtime.sidecar.lanes import describe, fallback
from kvferry_runtime.sidecar.records import KEPT, Direction, Records, TransferRecord
from kvferry_runtime.sidecar.wire_time import WireTime
from kvferry_runtime.transport.base import Lane

TCP, RC, SHM = Lane("tcp", "eth0"), Lane("rc_mlx5", "mlx5_0:1"), Lane("posix", "memory")


@pytest.mark.parametrize(
    ("kind", "lanes", "good"),
    [
        (TransportKind.RDMA, (RC, TCP), True),
        (TransportKind.RDMA, (TCP,), False),
        (TransportKind.RDMA, (), False),
        (TransportKind.SHM, (SHM,), True),
        (TransportKind.SHM, (TCP,), False),
        (TransportKind.TCP, (TCP,), True),
        (TransportKind.AUTO, (TCP,), True),
    ],
)
def test_fallback_is_seen_in_the_lanes(kind: TransportKind, lanes: tuple[Lane, ...], good: bool) -> None:
    problem = fallback(kind, lanes)
    assert (problem is None) == good
    if problem is not None:
        assert kind.value in problem and "transfer.onFallback" in problem


def test_lanes_are_named_once() -> None:
    assert describe((TCP, RC, TCP)) == ("tcp:eth0", "rc_mlx5:mlx5_0:1")


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=12),
    st.integers(0, 80),
    st.integers(0, 80),
)
def test_wire_time_is_the_union_of_intervals(spans: list[tuple[int, int]], finished: int, told: int) -> None:
    """Told of the end of the pass at any time after it, the hidden part is what lay before it."""
    told = max(told, finished)
    events = sorted([(start, 1) for start, _ in spans] + [(start + size, -1) for start, size in spans] + [(told, 0)])
    wire = WireTime()
    for now, kind in events:
        if kind > 0:
            wire.started(now)
        elif kind < 0:
            wire.ended(now)
        else:
            wire.computed(finished)
    moments = {moment for start, size in spans for moment in range(start, start + size)}
    assert wire.busy(100) == len(moments)
    assert wire.hidden(100) == sum(moment < finished for moment in moments)


def record(number: int, over: bool) -> TransferRecord:
    return TransferRecord(f"{number:032x}", Direction.SEND, 1, 0.0, "offered", over=over)


def test_open_records_are_never_forgotten() -> None:
    records = Records()
    records.add(record(0, over=False))
    for number in range(1, KEPT + 100):
        records.add(record(number, over=True))
    assert len(records.newest(10 * KEPT)) == KEPT
    assert records.find(f"{0:032x}")
    assert not records.find(f"{1:032x}")
    assert records.newest(1)[0].id == f"{KEPT + 99:032x}"


def test_shares_of_nothing_are_zero() -> None:
    shown = record(1, over=True).to_dict()
    assert shown["hidden_share"] == shown["goodput_bytes_per_s"] == 0.0
