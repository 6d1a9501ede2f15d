"""The report's size, and what a pair is called while nothing is known of it."""

from __future__ import annotations

from dataclasses import replace

from kvferry_contract import pairs
from kvferry_contract.pairs import PairState, Report, SidecarFacts
from kvferry_runtime.errors import Reason
from kvferry_runtime.router.pairing import Pair
from kvferry_runtime.router.reasons import Finding
from kvferry_runtime.router.verify import report, schedule
from kvferry_runtime.router.verify.schedule import settled
from kvferry_runtime.router.verify.verdict import Figures, Verdict, undecided
from routed_stubs import group

PAIR = Pair(
    group("10.0.0.1:8000", "prefill", sidecar_http=("10.0.0.1:7401",)),
    group("10.0.0.2:8000", "decode", sidecar_http=("10.0.0.2:7401",)),
)


def test_a_pair_is_pending_until_something_is_decided() -> None:
    unknown = report.pair_of(PAIR, None)
    assert (unknown.state, unknown.message, unknown.changed_unix) == (PairState.PENDING, "", 0.0)
    tried = report.pair_of(PAIR, settled(None, undecided("no answer"), PAIR, {}, 1.0, 100.0))
    assert (tried.state, tried.reason, tried.message) == (PairState.PENDING, "", "no answer")


def test_the_largest_report_is_within_what_the_operator_reads() -> None:
    figures = Figures("f" * 32, 1 << 40, 1 << 40, 1 << 20, "sparse75", ("rc_mlx5:mlx5_0:1", "tcp:eth0") * 2)
    verdict = Verdict(Finding.FAILED, Reason.FINGERPRINT_MISMATCH, "é" * 1000, figures)
    long = report.pair_of(PAIR, settled(None, verdict, PAIR, {}, 1.0, 1.7e9 + 1 / 3))
    long = replace(long, prefill="p" * 63, decode="d" * 63)
    facts = SidecarFacts(
        "p" * 63, "prefill", "f" * 16, 1 << 40, ("mlx5_0",) * 8, figures.lanes, 1, 1, 1, 0.1, 0.1, None
    )
    whole = Report(1.7e9, (long,) * schedule.MAX_PAIRS, (facts,) * 500, {"disaggregated": 1 << 40})
    assert len(pairs.dump(whole)) < pairs.MAX_BYTES
