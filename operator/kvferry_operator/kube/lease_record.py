"""What stands in a Lease, and what it means for one who wants to hold it. Pure.

No two clocks are compared. The holder writes into the Lease again and again; whoever waits notes by his own clock when
he last saw it change, and takes it over once that was longer ago than the holder promised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any

from kvferry_operator.desired.stage import Manifest
from kvferry_operator.kube.kinds import LEASE

_RELEASED_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Terms:
    """Which Lease, and how it is held; times in seconds.

    duration: after this long without a sign of the holder, others may take over. renew_deadline: after this long
    without success in renewing, the holder gives up, sooner than others may take over. retry: between two attempts.
    """

    namespace: str
    name: str
    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration > self.renew_deadline > self.retry > 0:
            raise ValueError(
                f"a lease needs duration > renew deadline > retry > 0, "
                f"found {self.duration:g} s, {self.renew_deadline:g} s, {self.retry:g} s"
            )


@dataclass(frozen=True, slots=True)
class Sighting:
    """A Lease as read. holder: empty when nobody holds it. since: own clock, when it was first seen like this."""

    manifest: Mapping[str, Any]
    holder: str
    duration: float
    since: float

    @classmethod
    def of(cls, manifest: Mapping[str, Any], now: float, before: Sighting | None = None) -> Sighting:
        """now: own clock, in seconds. before: the last sighting of the same Lease."""
        spec = manifest.get("spec") or {}
        unchanged = before is not None and before.manifest.get("spec") == manifest.get("spec")
        return cls(
            manifest=manifest,
            holder=spec.get("holderIdentity") or "",
            duration=float(spec.get("leaseDurationSeconds") or 0),
            since=before.since if before is not None and unchanged else now,
        )


class Move(Enum):
    """What to do about a Lease."""

    TAKE = auto()
    RENEW = auto()
    WAIT = auto()


def decide(seen: Sighting | None, me: str, now: float) -> Move:
    """seen: the last sighting, None if there is no Lease. me: the name that we hold it under. now: own clock."""
    if seen is None or not seen.holder:
        return Move.TAKE
    if seen.holder == me:
        return Move.RENEW
    return Move.TAKE if now - seen.since >= seen.duration else Move.WAIT


def held(terms: Terms, me: str, wall: datetime, seen: Sighting | None) -> Manifest:
    """The Lease as it is to be written by its holder, new or old. wall: for people who look at it."""
    spec: Mapping[str, Any] = (seen.manifest.get("spec") or {}) if seen else {}
    mine = seen is not None and seen.holder == me
    moment = _micro_time(wall)
    written = {
        "holderIdentity": me,
        "leaseDurationSeconds": math.ceil(terms.duration),
        "acquireTime": spec.get("acquireTime", moment) if mine else moment,
        "renewTime": moment,
        "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (seen is not None and not mine),
    }
    return _manifest(terms, seen, {**spec, **written})


def released(terms: Terms, wall: datetime, seen: Sighting) -> Manifest:
    """The Lease as its holder leaves it, so that the next one need not wait."""
    left = {"holderIdentity": "", "leaseDurationSeconds": _RELEASED_SECONDS, "renewTime": _micro_time(wall)}
    return _manifest(terms, seen, {**(seen.manifest.get("spec") or {}), **left})


def _manifest(terms: Terms, seen: Sighting | None, spec: dict[str, Any]) -> Manifest:
    # with the metadata comes the resourceVersion: a Lease that somebody else has written since is not overwritten
    metadata = dict(seen.manifest["metadata"]) if seen else {"namespace": terms.namespace, "name": terms.name}
    return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}


def _micro_time(wall: datetime) -> str:
    return wall.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
