"""What one pod of a group tells of itself, as a kubelet writes it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kvferry_operator.observation.member import Member, members

AT = datetime(2026, 1, 1, 12, 0, 5, tzinfo=UTC)
LABELS = {"kvferry.io/role": "decode", "kvferry.io/revision": "ab12cd34", "kvferry.io/stage": "1"}


def pod(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    made = {"name": "p-0", "uid": "u", "creationTimestamp": "2026-01-01T12:00:05Z", "labels": LABELS, **metadata}
    return {"metadata": made, "spec": {"nodeName": "node"}, "status": status or {}}


def engine(**status: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "engine", **status}]}


def ready(status: str, since: str) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": since}]}


def only(manifest: dict[str, Any]) -> Member:
    (found,) = members([manifest])
    return found


def test_it_says_who_it_is_and_when_it_was_made() -> None:
    assert only(pod()) == Member(stage=1, name="p-0", uid="u", created=AT)


def test_a_pod_of_no_stage_is_no_member() -> None:
    assert members([pod(labels={})]) == ()


def test_ready_since_is_known_only_while_it_is_ready() -> None:
    assert only(pod(ready("True", "2026-01-01T12:00:05Z"))).ready_since == AT
    assert only(pod(ready("False", "2026-01-01T12:00:05Z"))).ready_since is None
    assert (
        only(pod(ready("True", "2026-01-01T12:00:05Z"), deletionTimestamp="2026-01-01T13:00:00Z")).ready_since is None
    )


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        (engine(state={"running": {"startedAt": "2026-01-01T12:00:09Z"}}), None),
        (engine(state={"terminated": {"finishedAt": "2026-01-01T12:00:05Z"}}), AT),
        (engine(state={"running": {}}, lastState={"terminated": {"finishedAt": "2026-01-01T12:00:05Z"}}), AT),
        (
            engine(
                state={"terminated": {"finishedAt": "2026-01-01T12:00:05Z"}},
                lastState={"terminated": {"finishedAt": "2026-01-01T11:00:00Z"}},
            ),
            AT,
        ),
        (engine(state={"terminated": {"finishedAt": None}}), None),
        (
            {"containerStatuses": [{"name": "other", "state": {"terminated": {"finishedAt": "2026-01-01T12:00:05Z"}}}]},
            None,
        ),
    ],
)
def test_when_the_engine_ended_last(status: dict[str, Any], ended: datetime | None) -> None:
    assert only(pod(status)).ended == ended


def test_restarts_count_while_the_engine_waits_for_the_next_one() -> None:
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert only(pod(engine(state=waits, restartCount=4))).crashes == 4
    assert only(pod(engine(state={"running": {}}, restartCount=4))).crashes == 0


@pytest.mark.parametrize(
    ("status", "stuck"),
    [
        ({}, False),
        (engine(state={"waiting": {"reason": "CrashLoopBackOff"}}), False),
        (engine(state={"waiting": {"reason": "ImagePullBackOff"}}), True),
        (ready("Unknown", "2026-01-01T12:00:05Z"), True),
        ({"phase": "Failed"}, True),
    ],
)
def test_what_keeps_it_from_running_at_all(status: dict[str, Any], stuck: bool) -> None:
    assert only(pod(status)).stuck is stuck


def test_a_pod_without_a_node_is_stuck() -> None:
    assert only({**pod(), "spec": {}}).stuck
