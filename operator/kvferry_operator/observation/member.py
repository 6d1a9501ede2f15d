"""One pod of a group of pipeline stages, as far as the others depend on it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from kvferry_operator.api import names
from kvferry_operator.observation.live import (
    BACK_OFF,
    JsonObject,
    condition,
    containers,
    is_leaving,
    is_ready,
    place_of,
    waiting_reason,
)
from kvferry_operator.observation.times import moment_of

CRASH_LOOP = "CrashLoopBackOff"
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Member:
    """Times are those that the API server and the kubelet wrote down, in whole seconds.

    ready_since: None while it is not ready. ended: when its engine's latest run that is over ended; None before that.
    crashes: restarts of an engine that waits for its next one. stuck: it cannot run for a reason of its own: it has no
    node or image, its node is silent, or it failed as a whole.
    """

    stage: int
    name: str
    uid: str
    created: datetime
    leaving: bool = False
    ready_since: datetime | None = None
    ended: datetime | None = None
    crashes: int = 0
    stuck: bool = False


def members(pods: Iterable[JsonObject]) -> tuple[Member, ...]:
    """Of the pods of one group."""
    return tuple(_members(pods))


def _members(pods: Iterable[JsonObject]) -> Iterator[Member]:
    for pod in pods:
        place = place_of(pod)
        if place is not None:
            yield _member(pod, place[2])


def _member(pod: JsonObject, stage: int) -> Member:
    metadata, ready = pod["metadata"], condition(pod, "Ready")
    engine = next((each for each in containers(pod) if each.get("name") == names.CONTAINER_ENGINE), {})
    return Member(
        stage=stage,
        name=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        created=moment_of(metadata.get("creationTimestamp")) or _LONG_AGO,
        leaving=is_leaving(pod),
        ready_since=(moment_of(ready.get("lastTransitionTime")) or _LONG_AGO) if is_ready(pod) else None,
        ended=_last_end(engine),
        crashes=int(engine.get("restartCount") or 0) if waiting_reason(engine) == CRASH_LOOP else 0,
        stuck=_is_stuck(pod),
    )


def _last_end(engine: JsonObject) -> datetime | None:
    ends = ((engine.get(key) or {}).get("terminated") or {} for key in ("state", "lastState"))
    return max(filter(None, (moment_of(each.get("finishedAt")) for each in ends)), default=None)


def _is_stuck(pod: JsonObject) -> bool:
    placed = (pod.get("spec") or {}).get("nodeName")
    silent = condition(pod, "Ready").get("status") == "Unknown"
    failed = (pod.get("status") or {}).get("phase") == "Failed"
    blocked = any(waiting_reason(each) in BACK_OFF - {CRASH_LOOP} for each in containers(pod))
    return not placed or silent or failed or blocked
