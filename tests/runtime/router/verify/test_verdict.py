"""What a canary says of a pairing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from kvferry_contract.config import TransportKind
from kvferry_runtime.errors import Reason
from kvferry_runtime.router.reasons import Finding
from kvferry_runtime.router.verify.sidecars import Record
from kvferry_runtime.router.verify.verdict import Evidence, judge
from stub_sidecar import COMMITTED, failed

RDMA_LANES = ["rc_mlx5:mlx5_0:1", "tcp:eth0"]


def record(**changes: Any) -> Record:
    return msgspec.convert({**COMMITTED, **changes}, Record)


WELL = Evidence("t1", "transferred", "", sent=(record(),), received=(record(),))


def test_equal_bytes_and_digests_at_both_ends_are_proof() -> None:
    verdict = judge(WELL, TransportKind.AUTO)
    assert (verdict.finding, verdict.reason, verdict.message) == (Finding.VERIFIED, None, "")
    figures = verdict.figures
    assert figures is not None
    assert (figures.transfer_id, figures.chunks, figures.bytes_raw, figures.bytes_wire) == ("t1", 4, 4096, 2048)
    assert (figures.codec, figures.lanes) == ("fp8", ("tcp:eth0",))


def test_a_codec_that_saved_nothing_is_none() -> None:
    plain = record(bytes_wire=4096)
    figures = judge(replace(WELL, sent=(plain,), received=(plain,)), TransportKind.AUTO).figures
    assert figures is not None and figures.codec == "none"


@pytest.mark.parametrize(
    "change", [{"chunks": 3}, {"bytes_raw": 1}, {"bytes_wire": 1}, {"digest": "bb"}, {"digest": ""}]
)
def test_any_difference_between_the_ends_is_corruption(change: dict[str, Any]) -> None:
    verdict = judge(replace(WELL, received=(record(**change),)), TransportKind.AUTO)
    assert (verdict.finding, verdict.reason) == (Finding.FAILED, Reason.CORRUPT)
    assert str(next(iter(change.values()))) in verdict.message and "4096" in verdict.message


def test_stages_count_together() -> None:
    sent = tuple(record(chunks=2, bytes_raw=10, bytes_wire=10, digest=digest) for digest in ("aa", "bb"))
    received = (record(chunks=4, bytes_raw=20, bytes_wire=20, digest="bb,aa"),)
    assert judge(replace(WELL, sent=sent, received=received), TransportKind.AUTO).finding is Finding.VERIFIED
    short = judge(replace(WELL, sent=sent[:1], received=received), TransportKind.AUTO)
    assert short.reason is Reason.CORRUPT


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason not in (Reason.DRAINING, Reason.CANCELLED)])
def test_a_recomputed_prompt_is_a_failure_with_the_transfers_reason(reason: Reason) -> None:
    lost = record(**failed(reason.value, "model.dtype: 'bf16' here, 'fp16' at the peer"))
    verdict = judge(Evidence("t1", "recomputed", reason.value, (None,), (lost,)), TransportKind.AUTO)
    assert (verdict.finding, verdict.reason) == (Finding.FAILED, reason)
    assert "model.dtype" in verdict.message
    without_record = judge(Evidence("t1", "recomputed", reason.value, (None,), (None,)), TransportKind.AUTO)
    assert without_record.reason is reason and reason.value in without_record.message


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (Evidence("t1", "recomputed", "draining", (None,), (record(**failed("draining", "going")),)), "going"),
        (Evidence("t1", "local", "", (record(),), (None,)), "held the prompt"),
        (replace(WELL, sent=(None,), unheard=("10.0.0.1:7401",)), "10.0.0.1:7401"),
        (replace(WELL, sent=(record(over=False, state="streaming"),)), "no record of the transfer's end"),
        (replace(WELL, received=(None,)), "no record of the transfer's end"),
    ],
    ids=["draining", "cached", "sidecar silent", "still open", "record forgotten"],
)
def test_what_says_nothing_of_the_pairing_decides_nothing(evidence: Evidence, said: str) -> None:
    verdict = judge(evidence, TransportKind.AUTO)
    assert (verdict.finding, verdict.reason) == (Finding.UNDECIDED, None)
    assert said in verdict.message


def test_an_engine_that_says_nothing_is_believed_by_its_sidecars_records() -> None:
    assert judge(replace(WELL, mode=""), TransportKind.AUTO).finding is Finding.VERIFIED
    waiting = record(over=False, state="offered")
    without = judge(Evidence("t1", "", "", sent=(waiting,), received=(None,)), TransportKind.AUTO)
    assert (without.finding, without.reason) == (Finding.FAILED, Reason.NO_CONNECTOR)
    assert Evidence("t1", "", "", sent=(waiting,), received=(None,)).settled, "waiting for records would tell no more"


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
    moved = record(lanes=lanes)
    verdict = judge(replace(WELL, sent=(moved,), received=(moved,)), transport)
    assert (verdict.finding is Finding.VERIFIED) == well
    assert verdict.figures is not None and verdict.figures.lanes == tuple(lanes)
    if not well:
        assert verdict.reason is Reason.FELL_BACK and lanes[0] in verdict.message
