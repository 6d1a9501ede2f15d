"""The end-to-end run tells a stage lost in mid-request from one that had done its part, on a played cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from end_to_end import losses
from end_to_end.client_pod import Answer
from end_to_end.errors import StepFailed
from end_to_end.losses import LOADS, TRIES
from end_to_end.tools import Tools

WAIT_SECONDS = 120.0
TOKENS = {role: list(range(load.answer_tokens)) for role, load in LOADS.items()}
CROSSED = {"route_reason": "disaggregated", "mode": "transferred", "reason": ""}
LATE = {"route_reason": "disaggregated", "mode": "recomputed", "reason": "deadline"}
LOST_ON_THE_WAY = {"route_reason": "disaggregated", "mode": "recomputed", "reason": "peer_lost"}
LOST_BEFORE = {"route_reason": "prefill_failed", "mode": "local", "reason": ""}
Told = tuple[int, dict[str, Any]]
"""Status and body."""


def answered(told: dict[str, str], role: str = "prefill") -> Told:
    return 200, {"choices": [{"token_ids": TOKENS[role]}], "kvferry": told}


class PlayedCluster(Tools):
    """Two groups of two pods. asked: how many requests came in each try. deleted: pods, in turn."""

    def __init__(self, tries: Sequence[Told], unseen: int = 0) -> None:
        """tries: how the last request of each try ends; what was asked with it was done in time. unseen: so many tries
        are over before anybody can have looked."""
        self._tries = iter(tries)
        self._unseen = unseen
        self._gone = threading.Event()
        self._busy = False
        self._uids = {f"pipeline-{role}-abc-s{stage}-0": 0 for role in LOADS for stage in range(2)}
        self.asked: list[int] = []
        self.deleted: list[str] = []

    def kubectl(self, *arguments: str, stdin: str = "", seconds: float = WAIT_SECONDS) -> str:
        match arguments[0]:
            case "exec":
                return self._answer(json.loads(stdin))
            case "delete":
                self._delete(arguments[2])
            case "get":
                return json.dumps({"blocks": {"free": 0 if self._busy else 1000}})
        return ""

    def get(self, *arguments: str) -> dict[str, Any]:
        return {"items": [{"metadata": {"name": name, "uid": uid}, "status": {}} for name, uid in self._uids.items()]}

    def _answer(self, asked: dict[str, Any]) -> str:
        assert asked["at_once"] == len(asked["bodies"])
        self.asked.append(asked["at_once"])
        if len(self.asked) > self._unseen:
            self._gone.clear()
            self._busy = True
            assert self._gone.wait(WAIT_SECONDS), "no pod was deleted while requests were open"
            self._busy = False
        told = [answered(CROSSED)] * (asked["at_once"] - 1) + [next(self._tries)]
        return "\n".join(json.dumps({"status": status, "body": body}) for status, body in told)

    def _delete(self, pod: str) -> None:
        self.deleted.append(pod)
        self._gone.set()
        group = pod.partition("-s1-")[0]
        self._uids = {name: uid + name.startswith(group) for name, uid in self._uids.items()}


@pytest.mark.parametrize("told", [LOST_ON_THE_WAY, LOST_BEFORE])
def test_prefill_is_deleted_again_until_a_request_meets_it(told: dict[str, str]) -> None:
    cluster = PlayedCluster([answered(CROSSED), answered(LATE), answered(told)])
    loss = losses.lose_a_stage(cluster, "pipeline", "prefill")
    assert cluster.deleted == ["pipeline-prefill-abc-s1-0"] * 3
    first = LOADS["prefill"].prompts
    assert cluster.asked == [first, 2 * first, 4 * first]
    assert [answer.kvferry for answer in loss.answers] == [CROSSED] * (4 * first - 1) + [told]
    assert len(loss.prompts) == 4 * first
    assert {uid for uid, _ in loss.before.values()} == {0, 2}, "of the pods before the last deletion"


def test_a_prefill_that_is_always_done_in_time_shows_nothing() -> None:
    cluster = PlayedCluster([answered(CROSSED)] * TRIES)
    with pytest.raises(StepFailed, match=f"{TRIES} times a stage of prefill was to be lost.* ask for more"):
        losses.lose_a_stage(cluster, "pipeline", "prefill")
    assert len(cluster.deleted) == TRIES


def test_requests_that_were_over_before_anybody_looked_are_asked_again() -> None:
    cluster = PlayedCluster([answered(CROSSED), answered(LOST_BEFORE)], unseen=1)
    losses.lose_a_stage(cluster, "pipeline", "prefill")
    assert cluster.deleted == ["pipeline-prefill-abc-s1-0"]
    assert cluster.asked == [LOADS["prefill"].prompts, 2 * LOADS["prefill"].prompts]


def test_a_decode_that_goes_ends_the_request() -> None:
    cluster = PlayedCluster([(503, {"error": {"message": "the group lost a stage", "code": "unavailable"}})])
    loss = losses.lose_a_stage(cluster, "pipeline", "decode")
    assert [answer.status for answer in loss.answers] == [503]


@pytest.mark.parametrize(
    ("role", "answer", "message"),
    [
        ("prefill", Answer(502, (), {"message": "prefill failed"}), "decode is there, but the request failed with 502"),
        ("prefill", Answer(200, (1, 2), LOST_BEFORE), "2 tokens of 24, and no word of a failure"),
        ("decode", Answer(200, (1, 2), CROSSED), "2 tokens of 150, and no word of a failure"),
        ("decode", Answer(404, (), {"message": "no such model"}), "a loss that is told as 404"),
        ("decode", Answer(502, (), {}), "a loss that is told as 502"),
    ],
)
def test_requests_may_not_end_otherwise(role: str, answer: Answer, message: str) -> None:
    with pytest.raises(StepFailed, match=message):
        losses.check(role, answer)
