"""Which groups of pipeline stages are made anew now, by `restart` of their role. Pure.

A group is whole when all its pods were ready at once, which is written down (`lives`). When it is torn (`tears`) its
pods are deleted, so that all stages begin anew together: the first time at once, then after a pause that doubles, and
at last no more. It is decided in one pass and done in the next one, which sees it written: whoever begins anew in
between neither counts twice nor deletes pods that nobody counts. Only pods of the group that was whole are deleted, and
soon after that was decided, so that nothing is ever deleted for having been deleted, whatever clocks say.

Not looked at are groups of one pod, those that are on their way out, and those of other revisions than the one that is
asked for: their engines find each other again by themselves, or are replaced anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kvferry_contract.config import Role
from kvferry_operator.api.types import Restart, RestartPolicy, RoleSpec
from kvferry_operator.observation.fleet import Cohort
from kvferry_operator.observation.member import Member, members
from kvferry_operator.plan import lives
from kvferry_operator.plan.lives import Life, Phase
from kvferry_operator.plan.tears import all_ready, survivors, tear

FORGOTTEN_AFTER = timedelta(hours=1)
"""A group that was made anew longer ago than this begins to count again."""
DELETED_WITHIN = timedelta(seconds=30)
"""After the decision. What is left then was not deleted, or counts as left because a clock was set back, and is new."""
_AT_ONCE = timedelta()


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod to delete."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class TornGroup:
    """phase: never whole. pause: before it is made anew."""

    role: Role
    ordinal: int
    phase: Phase
    why: str
    count: int
    most: int
    pause: timedelta


@dataclass(frozen=True, slots=True)
class Restarts:
    """lives: what is to be written, by role; roles whose groups are not looked at are missing. pods: to delete. torn:
    to tell. again: time after which to look again, though nothing may have been heard."""

    lives: Mapping[Role, str]
    pods: tuple[PodRef, ...] = ()
    torn: tuple[TornGroup, ...] = ()
    again: timedelta | None = None


@dataclass(frozen=True, slots=True)
class _Turn:
    """Of one group: what it says now, what is deleted, and when to look again."""

    life: Life | None
    pods: Sequence[Member] = ()
    again: timedelta | None = None


def restarts(
    specs: Mapping[Role, RoleSpec], cohorts: Mapping[Role, Cohort], sizes: Mapping[Role, int], now: datetime
) -> Restarts:
    """cohorts: of the revision that is asked for. sizes: groups that it is given now."""
    texts: dict[Role, str] = {}
    pods: list[PodRef] = []
    torn: list[TornGroup] = []
    again: list[timedelta] = []
    for role, spec in specs.items():
        rules, cohort = spec.restart, cohorts[role]
        if spec.parallelism.pipeline == 1 or rules.policy is not RestartPolicy.RECREATE_GROUP:
            continue
        turns = _turns(rules, cohort, sizes[role], now)
        found = {ordinal: turn.life for ordinal, turn in turns.items() if turn.life is not None}
        texts[role] = lives.written(found)
        torn += [_torn(role, ordinal, life, rules) for ordinal, life in found.items() if life.phase is not Phase.WHOLE]
        for turn in turns.values():
            pods += [PodRef(pod.name, pod.uid) for pod in turn.pods]
            again += [] if turn.again is None else [turn.again]
    return Restarts(texts, tuple(pods), tuple(torn), min(again, default=None))


def _turns(rules: Restart, cohort: Cohort, size: int, now: datetime) -> dict[int, _Turn]:
    """Of the groups that stay, by ordinal."""
    staying = min([size, *(workload.replicas for workload in cohort.workloads)])
    if len(cohort.workloads) < cohort.stages:
        staying = 0
    known = lives.read(cohort.workloads[0].lives) if cohort.workloads else {}
    there = {group.ordinal: members(group.pods) for group in cohort.groups}
    return {
        ordinal: _turn(known.get(ordinal), there.get(ordinal, ()), cohort.stages, rules, now)
        for ordinal in range(staying)
    }


def _turn(life: Life | None, pods: Sequence[Member], stages: int, rules: Restart, now: datetime) -> _Turn:
    left = [] if life is None else survivors(pods, life.since)
    if life is None or not left:
        return _Turn(_begun(life, pods) if all_ready(pods, stages) else life)
    torn = tear(pods, stages, life.since, now)
    if torn is None and all_ready(pods, stages):
        return _Turn(_whole(life, pods, now))
    if life.phase is Phase.GOING and _is_just_decided(life, now):
        return _Turn(life, [pod for pod in left if not pod.leaving])
    if life.phase in (Phase.WHOLE, Phase.GOING):
        if torn is None:
            return _Turn(life)
        if torn.after:
            return _Turn(life, again=torn.after)
        life = replace(life, why=torn.why)
    return _decided(life, rules, now)


def _begun(life: Life | None, pods: Sequence[Member]) -> Life:
    """A group of new pods. If somebody else replaced all of them, a person or a drain, it begins to count anew."""
    since = max(pod.created for pod in pods)
    return Life(since, life.count, life.at) if life is not None and life.phase is Phase.GOING else Life(since)


def _whole(life: Life, pods: Sequence[Member], now: datetime) -> Life:
    """It serves, maybe with new pods that the others took in by themselves."""
    since = max(life.since, *(pod.created for pod in pods))
    return Life(since) if _is_forgotten(life, now) else Life(since, life.count, life.at)


def _decided(life: Life, rules: Restart, now: datetime) -> _Turn:
    """For a group that is torn."""
    # its own pause may be as long: only a group that served since then begins to count anew
    forgotten = _is_forgotten(life, now) and life.phase is Phase.WHOLE
    count = 0 if forgotten else life.count
    if count >= rules.max_restarts:
        return _Turn(replace(life, phase=Phase.LEFT))
    pause = _pause(rules, count)
    # a clock that was set back must not make it longer
    rest = _AT_ONCE if life.at is None else min(pause, life.at + pause - now)
    if rest > _AT_ONCE:
        return _Turn(replace(life, phase=Phase.TORN), again=rest)
    return _Turn(replace(life, count=count + 1, at=now, phase=Phase.GOING), again=_AT_ONCE)


def _is_just_decided(life: Life, now: datetime) -> bool:
    return life.at is not None and abs(now - life.at) <= DELETED_WITHIN


def _is_forgotten(life: Life, now: datetime) -> bool:
    return life.at is not None and now - life.at > FORGOTTEN_AFTER


def _pause(rules: Restart, count: int) -> timedelta:
    """Before a group is made anew that was so `count` times."""
    seconds = 0.0 if count == 0 else rules.backoff_seconds * 2.0 ** min(count - 1, 16)
    return min(timedelta(seconds=seconds), FORGOTTEN_AFTER)


def _torn(role: Role, ordinal: int, life: Life, rules: Restart) -> TornGroup:
    return TornGroup(role, ordinal, life.phase, life.why, life.count, rules.max_restarts, _pause(rules, life.count))
