"""What a canary says of a pairing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from kvferry_contract.config import TransportKind
from kvferry_runtime.errors import Reason
from kvferry_runtime.router.reasons import Finding
from kvferry_runtime.router.verify.evidence import Evidence, StageTransfer, sources
from kvferry_runtime.router.verify.sidecars import Record
from kvferry_runtime.router.verify.verdict import judge
from stub_sidecar import COMMITTED, failed

RDMA_LANES = ["rc_mlx5:mlx5_0:1", "tcp:eth0"]


def record(**changes: Any) -> Record:
    return msgspec.convert({**COMMITTED, **changes}, Record)


def moved(sent: Record | None, received: Record | None) -> tuple[StageTransfer, ...]:
    """From one stage to one stage."""
    return (StageTransfer(received, {} if received is None else {0: sent}),)


WELL = Evidence("t1", "transferred", "", moved(record(), record()))


def test_equal_bytes_and_digests_at_both_ends_are_proof() -> None:
    verdict = judge(WELL, TransportKind.AUTO)
    assert (verdict.finding, verdict.reason, verdict.message) == (Finding.VERIFIED, None, "")
    figures = verdict.figures
    assert figures is not None
    assert (figures.transfer_id, figures.chunks, figures.bytes_raw, figures.bytes_wire) == ("t1", 4, 4096, 2048)
    assert (figures.codec, figures.lanes) == ("fp8", ("tcp:eth0",))


def test_a_codec_that_saved_nothing_is_none() -> None:
    plain = record(bytes_wire=4096)
    figures = judge(replace(WELL, transfers=moved(plain, plain)), TransportKind.AUTO).figures
    assert figures is not None and figures.codec == "none"


@pytest.mark.parametrize(
    "change", [{"chunks": 3}, {"bytes_raw": 1}, {"bytes_wire": 1}, {"digest": "bb"}, {"digest": ""}]
)
def test_any_difference_between_the_ends_is_corruption(change: dict[str, Any]) -> None:
    verdict = judge(replace(WELL, transfers=moved(record(), record(**change))), TransportKind.AUTO)
    assert (verdict.finding, verdict.reason) == (Finding.FAILED, Reason.CORRUPT)
    assert str(next(iter(change.values()))) in verdict.message and "4096" in verdict.message


def staged(received: dict[int, dict[str, Any]], sent: dict[tuple[int, int], dict[str, Any]], prefills: int) -> Evidence:
    """received: by stage of decode. sent: by stage of prefill and of decode."""
    transfers = []
    for decode, changes in received.items():
        theirs = {prefill: record(**figures) for (prefill, to), figures in sent.items() if to == decode}
        transfers.append(StageTransfer(record(**changes), theirs))
    return Evidence("t1", "transferred", "", tuple(transfers), prefills)


def part(chunks: int, digest: str, **more: Any) -> dict[str, Any]:
    return {"chunks": chunks, "bytes_raw": 10 * chunks, "bytes_wire": 5 * chunks, "digest": digest, **more}


SENT = {(0, 0): part(2, "aa"), (1, 0): part(1, "bb"), (1, 1): part(3, "cc", codec="int8", lanes=["tcp:eth1"])}
RECEIVED = {0: part(3, "aa,bb"), 1: part(3, "cc", codec="int8", lanes=["tcp:eth1"])}


def test_stages_are_proven_together_and_counted_together() -> None:
    verdict = judge(staged(RECEIVED, SENT, 2), TransportKind.AUTO)
    assert verdict.finding is Finding.VERIFIED
    figures = verdict.figures
    assert figures is not None
    assert (figures.transfer_id, figures.chunks, figures.bytes_raw, figures.bytes_wire) == ("t1", 6, 60, 30)
    assert (figures.codec, figures.lanes) == ("fp8,int8", ("tcp:eth0", "tcp:eth1"))


@pytest.mark.parametrize(
    ("received", "sent", "said"),
    [
        ({0: part(3, "bb,aa")}, {}, "the two ends of decode stage 0 differ"),
        ({1: part(3, "cd")}, {}, "the two ends of decode stage 1 differ"),
        ({1: part(4, "cc")}, {}, "decode 4 chunks"),
        ({1: part(3, "cc", state="failed")}, {}, "not committed"),
        ({}, {(1, 0): part(2, "bb")}, "the two ends of decode stage 0 differ: prefill recorded 4 chunks"),
        ({}, {(1, 0): part(1, "bb", state="sealed")}, "not committed"),
        # what one stage lacks is not made up for by what another has too much
        ({0: part(4, "aa,bb"), 1: part(2, "cc")}, {}, "the two ends of decode stage 0 differ"),
    ],
)
def test_a_difference_at_any_pair_of_stages_is_corruption(
    received: dict[int, dict[str, Any]], sent: dict[tuple[int, int], dict[str, Any]], said: str
) -> None:
    verdict = judge(staged(RECEIVED | received, SENT | sent, 2), TransportKind.AUTO)
    assert (verdict.finding, verdict.reason) == (Finding.FAILED, Reason.CORRUPT)
    assert said in verdict.message


@pytest.mark.parametrize(
    ("transfers", "said"),
    [
        ((StageTransfer(record(), {0: record()}), StageTransfer(None, {})), "decode stage 1 has no record"),
        (
            (StageTransfer(record(), {0: record(), 1: None}), StageTransfer(record(), {1: record()})),
            "prefill stage 1 has no record of what it sent to decode stage 0",
        ),
        (
            (StageTransfer(record(), {0: record()}), StageTransfer(record(), {0: record()})),
            "prefill stage 1 sent nothing",
        ),
        ((StageTransfer(record(), {0: record()}, ("10.0.0.9:7400",)),), "decode loaded from 10.0.0.9:7400"),
    ],
    ids=["decode stage", "prefill stage", "idle prefill stage", "stranger"],
)
def test_a_stage_that_recorded_nothing_is_a_failure_that_names_it(
    transfers: tuple[StageTransfer, ...], said: str
) -> None:
    verdict = judge(Evidence("t1", "transferred", "", transfers, prefill_stages=2), TransportKind.AUTO)
    assert (verdict.finding, verdict.reason) == (Finding.FAILED, Reason.CORRUPT)
    assert said in verdict.message


def test_records_of_all_stages_are_waited_for() -> None:
    one, other = StageTransfer(record(), {0: record()}), StageTransfer(record(over=False, state="loading"), {0: None})
    assert Evidence("t1", "transferred", "", (one, one)).settled
    assert not Evidence("t1", "transferred", "", (one, other)).settled
    assert not Evidence("t1", "transferred", "", (one, StageTransfer(None, {}))).settled
    lost = StageTransfer(record(**failed("peer_lost")), {0: None})
    assert Evidence("t1", "transferred", "", (other, lost)).settled, "one broken part breaks the whole"


def test_whom_decode_loaded_from_is_told_by_its_record() -> None:
    sidecars = ("10.0.0.1:7400", "10.0.0.2:7400", "[fd00::3]:7400")
    assert sources(record(peer="10.0.0.2:7400,[fd00::3]:7400"), sidecars) == ((1, 2), ())
    assert sources(record(peer="[fd00::3]:7400,10.0.0.9:7400"), sidecars) == ((2,), ("10.0.0.9:7400",))
    assert sources(record(peer=""), sidecars) == sources(None, sidecars) == ((), ())


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason not in (Reason.DRAINING, Reason.CANCELLED)])
def test_a_recomputed_prompt_is_a_failure_with_the_transfers_reason(reason: Reason) -> None:
    lost = record(**failed(reason.value, "model.dtype: 'bf16' here, 'fp16' at the peer"))
    verdict = judge(Evidence("t1", "recomputed", reason.value, moved(None, lost)), TransportKind.AUTO)
    assert (verdict.finding, verdict.reason) == (Finding.FAILED, reason)
    assert "model.dtype" in verdict.message
    without_record = judge(Evidence("t1", "recomputed", reason.value, moved(None, None)), TransportKind.AUTO)
    assert without_record.reason is reason and reason.value in without_record.message


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (Evidence("t1", "recomputed", "draining", moved(None, record(**failed("draining", "going")))), "going"),
        (Evidence("t1", "local", "", moved(None, None)), "held the prompt"),
        (replace(WELL, transfers=moved(None, record()), unheard=("10.0.0.1:7401",)), "10.0.0.1:7401"),
        (
            replace(WELL, transfers=moved(record(over=False, state="streaming"), record())),
            "no record of the transfer's end",
        ),
    ],
    ids=["draining", "cached", "sidecar silent", "still open"],
)
def test_what_says_nothing_of_the_pairing_decides_nothing(evidence: Evidence, said: str) -> None:
    verdict = judge(evidence, TransportKind.AUTO)
    assert (verdict.finding, verdict.reason) == (Finding.UNDECIDED, None)
    assert said in verdict.message


def test_an_engine_that_says_nothing_is_believed_by_its_sidecars_records() -> None:
    assert judge(replace(WELL, mode=""), TransportKind.AUTO).finding is Finding.VERIFIED
    nothing = Evidence("t1", "", "", moved(None, None))
    without = judge(nothing, TransportKind.AUTO)
    assert (without.finding, without.reason) == (Finding.FAILED, Reason.NO_CONNECTOR)
    assert nothing.settled, "waiting for records would tell no more"


@pytest.mark.parametrize(
    ("transport", "lanes", "well"),
    [
        (TransportKind.RDMA, RDMA_LANES, True),
        (TransportKind.RDMA, ["tcp:eth0"], False),
        (TransportKind.SHM, ["tcp:lo"], False),
        (TransportKind.SHM, ["posix:memory"], True),
        (TransportKind.AUTO, ["tcp:eth0"], True),
        (TransportKind.TCP, ["tcp:eth0"], True),
    ],
)
def test_other_lanes_than_asked_for_are_a_failure_with_figures(
    transport: TransportKind, lanes: list[str], well: bool
) -> None:
    carried = record(lanes=lanes)
    verdict = judge(replace(WELL, transfers=moved(carried, carried)), transport)
    assert (verdict.finding is Finding.VERIFIED) == well
    assert verdict.figures is not None and verdict.figures.lanes == tuple(lanes)
    if not well:
        assert verdict.reason is Reason.FELL_BACK and lanes[0] in verdict.message
