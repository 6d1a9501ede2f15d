"""Proofs of transfers: how long one holds, what takes it back, and how seldom figures are written."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from builders import raw
from kvferry_contract.pairs import PairState, Report
from kvferry_operator.status.transfer import REASONS
from model_statuses import NOW, condition, kstatus, ready_cluster, status_of, told
from router_reports import report
from simulated_cluster import SimulatedCluster

FAILED, PENDING, VERIFIED = PairState.FAILED, PairState.PENDING, PairState.VERIFIED
LATER = NOW + timedelta(days=1)


@pytest.fixture
def cluster() -> SimulatedCluster:
    ready = ready_cluster(raw({"prefill.replicas": 2, "decode.replicas": 2}))
    for pod in ready.pods.values():
        pod["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    return ready


def with_pair(found: Report, number: int, **changes: Any) -> Report:
    pairs = list(found.pairs)
    pairs[number] = replace(pairs[number], **changes)
    return replace(found, pairs=tuple(pairs))


def sent(cluster: SimulatedCluster, raw_bytes: int = 1 << 30, **changes: Any) -> Report:
    """Two senders that sent so much each."""
    figures = {
        "sent": 5,
        "bytes_raw": raw_bytes,
        "bytes_wire": raw_bytes // 2,
        "wire_seconds": 2.0,
        "hidden_seconds": 1.5,
    }
    return report(cluster, **(figures | changes))


@pytest.mark.parametrize("reason", [*REASONS, "something new", ""])
def test_one_failed_pair_is_enough(cluster: SimulatedCluster, reason: str) -> None:
    heard = with_pair(report(cluster), 2, state=FAILED, reason=reason, message="field dtype differs")
    status = status_of(cluster, report=heard)
    expected = REASONS.get(reason, "Failed")
    assert told(status, "TransferVerified") == ("False", expected) and told(status, "Ready")[0] == "False"
    message = condition(status, "TransferVerified")["message"]
    assert "field dtype differs" in message and heard.pairs[2].prefill in message and heard.pairs[2].decode in message


def test_the_most_telling_of_several_failures_is_told_whatever_their_order(cluster: SimulatedCluster) -> None:
    heard = with_pair(report(cluster), 0, state=FAILED, reason="peer_lost")
    heard = with_pair(heard, 3, state=FAILED, reason="fingerprint_mismatch")
    backwards = replace(heard, pairs=heard.pairs[::-1])
    status = status_of(cluster, report=heard)
    assert status == status_of(cluster, report=backwards)
    assert told(status, "TransferVerified")[1] == "FingerprintMismatch" and kstatus(status) == "Failed"


def test_a_group_that_is_in_no_pair_is_not_proved(cluster: SimulatedCluster) -> None:
    heard = report(cluster)
    lonely = heard.pairs[0].prefill
    heard = replace(heard, pairs=tuple(pair for pair in heard.pairs if pair.prefill != lonely))
    assert told(status_of(cluster, report=heard), "TransferVerified") == ("Unknown", "Pending")


def test_pairs_of_groups_that_are_gone_or_old_do_not_count(cluster: SimulatedCluster) -> None:
    heard = report(cluster)
    gone = replace(heard.pairs[0], prefill="tiny-prefill-00000000-s0-0", state=FAILED, reason="peer_lost")
    assert told(status_of(cluster, report=replace(heard, pairs=(*heard.pairs, gone))), "TransferVerified")[0] == "True"


def test_a_proof_stands_while_the_router_is_away_or_starts_anew(cluster: SimulatedCluster) -> None:
    proved = status_of(cluster, report=report(cluster))
    silent = status_of(cluster, report="no answer in 3 s", previous=proved, now=LATER)
    anew = report(cluster, {"state": PENDING, "codec": "", "lanes": (), "bytes_raw": 0})
    for after in (silent, status_of(cluster, report=anew, previous=proved, now=LATER)):
        assert after == proved


def test_a_proof_ends_with_the_pods_that_it_was_made_with(cluster: SimulatedCluster) -> None:
    proved = status_of(cluster, report=report(cluster))
    pod = next(iter(cluster.pods.values()))
    pod["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-02T05:00:00Z"
    after = status_of(cluster, report="no answer", previous=proved, now=LATER)
    assert told(after, "TransferVerified") == ("Unknown", "RouterUnreachable")
    assert "no answer" in condition(after, "TransferVerified")["message"]


def test_a_failure_takes_a_proof_back_at_once(cluster: SimulatedCluster) -> None:
    proved = status_of(cluster, report=report(cluster))
    heard = with_pair(report(cluster), 1, state=FAILED, reason="corrupt")
    after = status_of(cluster, report=heard, previous=proved, now=LATER)
    assert told(after, "TransferVerified") == ("False", "Corrupt")
    assert after["transfer"]["verifiedTime"] == proved["transfer"]["verifiedTime"]


def test_what_keeps_a_pair_from_its_proof_is_told(cluster: SimulatedCluster) -> None:
    heard = with_pair(report(cluster), 3, state=PENDING, message="prefill: connection refused")
    status = status_of(cluster, report=heard)
    assert told(status, "TransferVerified") == ("Unknown", "Pending")
    assert "connection refused" in condition(status, "TransferVerified")["message"]


def test_prefill_that_cannot_come_up_leaves_decode_alone(cluster: SimulatedCluster) -> None:
    for name, pod in cluster.pods.items():
        if "prefill" in name:
            cluster.set_ready(pod, False)
            pod["status"]["containerStatuses"][0] |= {"restartCount": 9, "lastState": {"terminated": {"exitCode": 1}}}
    assert told(status_of(cluster, report=report(cluster)), "TransferVerified") == ("False", "DecodeOnly")


def test_figures_are_those_of_the_senders(cluster: SimulatedCluster) -> None:
    transfer = status_of(cluster, report=sent(cluster, max_relative_error=0.0125))["transfer"]
    assert transfer == {
        "transport": "tcp",
        "codec": "fp8",
        "bytesRaw": 2 << 30,
        "bytesWire": 1 << 30,
        "compressionRatio": "2",
        "maxRelativeError": "0.0125",
        "overlapPercent": 75,
        "goodputBytesPerSecond": (2 << 30) // 4,
        "verifiedTime": "2026-01-02T03:04:05Z",
    }


@pytest.mark.parametrize(
    ("seconds", "share", "written"),
    [(299, 9.0, False), (301, 1.24, False), (301, 1.26, True), (301, 0.7, True), (86400, 1.0, False)],
)
def test_figures_are_written_again_only_after_a_while_and_a_quarter(
    cluster: SimulatedCluster, seconds: int, share: float, written: bool
) -> None:
    before = status_of(cluster, report=sent(cluster))
    later = NOW + timedelta(seconds=seconds)
    # the ratio of bytes stays, so that one figure alone moves
    heard = sent(cluster, hidden_seconds=1.5 * min(share, 1.3))
    after = status_of(cluster, report=heard if share != 9.0 else sent(cluster, 9 << 30), previous=before, now=later)
    assert (after != before) is written


def test_another_codec_or_way_is_written_at_once(cluster: SimulatedCluster) -> None:
    before = status_of(cluster, report=report(cluster))
    soon = NOW + timedelta(seconds=1)
    after = status_of(cluster, report=report(cluster, {"codec": "none"}), previous=before, now=soon)
    assert after["transfer"]["codec"] == "none" and after["transfer"]["verifiedTime"] == "2026-01-02T03:04:06Z"
    moved = status_of(cluster, report=report(cluster, {"lanes": ("rc_mlx5:m",)}), previous=before, now=soon)
    assert moved["transfer"]["transport"] == "rc_mlx5"


def test_clocks_that_are_ahead_cause_no_write(cluster: SimulatedCluster) -> None:
    next(iter(cluster.pods.values()))["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-02T04:00:00Z"
    first = status_of(cluster, report=report(cluster))
    assert status_of(cluster, report=report(cluster), previous=first, now=NOW + timedelta(seconds=30)) == first


def test_sides_that_do_not_agree_have_no_common_fingerprint(cluster: SimulatedCluster) -> None:
    heard = report(cluster)
    other = replace(heard.sidecars[0], fingerprint="f2")
    assert "fingerprint" not in status_of(cluster, report=replace(heard, sidecars=(other, *heard.sidecars[1:])))
    before = status_of(cluster, report=heard)
    assert status_of(cluster, previous=before)["fingerprint"] == "f1"


def test_every_stage_of_every_group_has_a_say_in_the_fingerprint() -> None:
    """Roles that are split unlike each other, of one revision."""
    staged = ready_cluster(raw({"prefill.parallelism.pipeline": 3, "decode.parallelism.pipeline": 2}))
    heard = report(staged)
    assert len(heard.sidecars) == sum("-prefill-" in pod or "-decode-" in pod for pod in staged.pods) >= 5
    assert status_of(staged, report=heard)["fingerprint"] == "f1"
    for number in range(len(heard.sidecars)):
        facts = [replace(each, fingerprint="f2") if n == number else each for n, each in enumerate(heard.sidecars)]
        assert "fingerprint" not in status_of(staged, report=replace(heard, sidecars=tuple(facts)))
