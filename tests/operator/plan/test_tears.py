"""When a group of stages is torn: what its pods say, told second by second in tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kvferry_operator.observation.member import Member
from kvferry_operator.plan.tears import SETTLE, tear

START = datetime(2026, 1, 1, tzinfo=UTC)
STAGES = 3


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


def pod(
    stage: int,
    created: int = 0,
    ready: int | None = None,
    ended: int | None = None,
    *,
    leaving: bool = False,
    crashes: int = 0,
    stuck: bool = False,
) -> Member:
    """Times in seconds; the group was whole at 0, and all were ready at 20."""
    return Member(
        stage=stage,
        name=f"p-s{stage}-0",
        uid=f"{stage}-{created}",
        created=at(created),
        leaving=leaving,
        ready_since=None if ready is None else at(ready),
        ended=None if ended is None else at(ended),
        crashes=crashes,
        stuck=stuck,
    )


SERVING = [pod(stage, ready=20) for stage in range(STAGES)]


@pytest.mark.parametrize(
    ("case", "pods", "why"),
    [
        ("all serve", SERVING, None),
        ("all ended together and are on their way back", [pod(stage, ended=100 + stage) for stage in range(3)], None),
        ("all ended together and serve again", [pod(stage, ready=140, ended=100 + stage) for stage in range(3)], None),
        ("one is gone, the others serve", SERVING[:2], "its stage 2 was lost"),
        ("one is gone, the others wait for it", [pod(0, ended=100), pod(1, ended=101)], "its stage 2 was lost"),
        ("two are gone", SERVING[1:2], "its stages 0 and 2 were lost"),
        ("one was replaced", [*SERVING[:2], pod(2, created=100)], "its stage 2 was lost"),
        (
            "one was replaced, and those of before took it in by themselves",
            [pod(0, ready=130, ended=98), pod(1, ready=130, ended=99), pod(2, created=100, ready=130)],
            None,
        ),
        (
            "one was replaced, and is ready, but those of before never noticed",
            [*SERVING[:2], pod(2, created=100, ready=130)],
            "its stage 2 was lost",
        ),
        ("one drains", [*SERVING[:2], pod(2, leaving=True)], None),
        ("one is gone and the others drain", [pod(0, leaving=True), pod(1, leaving=True)], None),
        (
            "one is gone, one drains, one is left",
            [pod(0, leaving=True), pod(1)],
            "its stage 2 was lost",
        ),
        ("all were replaced", [pod(stage, created=100) for stage in range(3)], None),
        ("the node of one is silent", [*SERVING[:2], pod(2, stuck=True)], None),
        (
            "the node of one is silent and the others end again and again",
            [pod(0, ended=290, crashes=9), pod(1, ended=290, crashes=9), pod(2, stuck=True)],
            None,
        ),
        (
            "one ended a while ago, and the others still say that they are ready",
            [pod(0, ready=20), pod(1, ready=20), pod(2, ended=200)],
            "pod p-s0-0 did not notice that another stage ended",
        ),
        (
            "the same, and it is on its way back",
            [pod(0, ready=20), pod(1, ended=201), pod(2, ended=200)],
            "pod p-s0-0 did not notice that another stage ended",
        ),
        (
            "all ended together and serve again, and the clock of one node is minutes ahead",
            [pod(0, ready=140, ended=100), pod(1, ready=140, ended=100), pod(2, ready=260, ended=220)],
            None,
        ),
        (
            "one ended while the group came up: the others had never been ready",
            [pod(0, ready=90), pod(1, ready=90), pod(2, ready=90, ended=50)],
            None,
        ),
        (
            "clocks of nodes differ by some seconds",
            [pod(0, ready=95), pod(1, ready=103), pod(2, ready=103, ended=100)],
            None,
        ),
        ("one crashed once", [pod(0, ended=290), pod(1, ended=290), pod(2, ended=289, crashes=1)], None),
        (
            "one ends again and again",
            [pod(0, ended=290), pod(1, ended=290), pod(2, ended=299, crashes=3)],
            "the engine of pod p-s2-0 ends again and again",
        ),
    ],
)
def test_what_is_torn(case: str, pods: list[Member], why: str | None) -> None:
    found = tear(pods, STAGES, since=START, now=at(300))
    assert (found.why if found else None) == why, case
    assert found is None or not found.after, case


def test_engines_have_time_to_notice_that_a_stage_ended() -> None:
    pods = [pod(0, ready=20), pod(1, ready=20), pod(2, ended=200)]
    soon, later = (tear(pods, STAGES, START, at(second)) for second in (203, 203 + SETTLE.seconds))
    assert soon is not None and soon.after == SETTLE - timedelta(seconds=3)
    assert later is not None and not later.after
