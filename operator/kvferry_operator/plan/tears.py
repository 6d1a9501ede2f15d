"""Whether a group of pipeline stages is torn: some of its pods have begun anew and others have not. Pure.

Stages of a group hold parts of the same requests, so that one which began anew is of no use to those which go on. As a
rule nothing is to be done: an engine ends when it loses a stage of its group, the kubelet starts it again at once, and
when all have done so the group is whole again. What is left is told from the pods alone:

* a pod is gone, or another took its place, while pods of before are still there;
* an engine ended and is not ready again, and another one, ready since before, still says so: it did not notice;
* an engine ends again and again, while no stage is in the way of the others.

Pods that drain are waited for: requests that are open on them may still end well. So is a node that does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kvferry_operator.observation.member import Member

SETTLE = timedelta(seconds=30)
"""So long may engines take to notice that a stage of their group ended."""
CLOCKS = timedelta(seconds=10)
"""So much may the clocks of two nodes differ."""
CRASHES = 3
"""Restarts after which an engine will hardly come up beside those that are there."""


@dataclass(frozen=True, slots=True)
class Tear:
    """why: for people; the same as long as it is torn in the same way. after: how long to wait whether it mends."""

    why: str
    after: timedelta = timedelta()


def all_ready(pods: Sequence[Member], stages: int) -> bool:
    """Whether there is a ready pod of every stage."""
    return len({pod.stage for pod in pods if pod.ready_since is not None and pod.stage < stages}) == stages


def _is_whole(pods: Sequence[Member], stages: int) -> bool:
    """Whether every stage is ready, and became so when the others were there: all began together."""
    newest = max((pod.created for pod in pods), default=None)
    return newest is not None and all_ready(pods, stages) and not (_unaware(pods) or _ready_by(newest, pods))


def survivors(pods: Sequence[Member], since: datetime) -> list[Member]:
    """Pods that were there when the group was whole, at `since`."""
    return [pod for pod in pods if pod.created <= since]


def tear(pods: Sequence[Member], stages: int, since: datetime, now: datetime) -> Tear | None:
    """What is torn in a group that was whole; None if nothing is.

    pods: all that there are. since: when the last pod of the whole group had been made.
    """
    if _is_whole(pods, stages):
        return None
    left = survivors(pods, since)
    lost = sorted(set(range(stages)) - {pod.stage for pod in left})
    if lost:
        return Tear(f"its {_stages(lost)} lost") if any(not pod.leaving for pod in left) else None
    if any(pod.leaving or pod.stuck for pod in left):
        return None
    return _unnoticed(left, now) or _crash_loop(left)


def _unnoticed(pods: Sequence[Member], now: datetime) -> Tear | None:
    unaware = _unaware(pods)
    if not unaware:
        return None
    last = max(_ends(pods))
    why = f"pod {unaware[0].name} did not notice that another stage ended"
    return Tear(why, max(timedelta(), last + SETTLE - now))


def _unaware(pods: Sequence[Member]) -> list[Member]:
    """Those that were ready before another's engine ended, and still are."""
    ends = _ends(pods)
    return _ready_by(max(ends) - CLOCKS, pods) if ends else []


def _ends(pods: Sequence[Member]) -> list[datetime]:
    """Of engines that are not back. One that is ready again has all others in its group, whatever their clocks say."""
    return [each.ended for each in pods if each.ended and not (each.ready_since and each.ready_since > each.ended)]


def _ready_by(moment: datetime, pods: Sequence[Member]) -> list[Member]:
    return [pod for pod in pods if pod.ready_since is not None and pod.ready_since <= moment]


def _crash_loop(pods: Sequence[Member]) -> Tear | None:
    looping = [pod for pod in pods if pod.crashes >= CRASHES]
    if not looping:
        return None
    return Tear(f"the engine of pod {looping[0].name} ends again and again")


def _stages(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"stage {numbers[0]} was"
    return f"stages {', '.join(map(str, numbers[:-1]))} and {numbers[-1]} were"
