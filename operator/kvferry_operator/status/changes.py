"""What is worth an Event: conditions that have another status or reason than before. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvferry_operator.status.conditions import Type, entry_of

JsonObject = Mapping[str, Any]

TOLD: tuple[Type, ...] = (
    Type.SPEC_VALID,
    Type.PREFILL_READY,
    Type.DECODE_READY,
    Type.ROUTER_READY,
    Type.FABRIC_READY,
    Type.TRANSFER_VERIFIED,
    Type.RATIO_SATISFIED,
    Type.STALLED,
    Type.AVAILABLE,
    Type.READY,
    Type.PROGRESSING,
)
"""The most specific first. Reconciling only mirrors others."""
QUIET_AT_FIRST = frozenset(
    {
        "Complete",
        "NoPair",
        "NotRequested",
        "NotRequired",
        "NotStalled",
        "Pending",
        "ScaledToZero",
        "Serving",
        "Starting",
        "Valid",
        "WithinBounds",
    }
)
"""Reasons that say nothing about an object that was seen for the first time."""


@dataclass(frozen=True, slots=True)
class Change:
    """A condition as it is now."""

    type: str
    status: str
    reason: str
    message: str


def changes(previous: JsonObject, current: JsonObject) -> tuple[Change, ...]:
    """Changes from one status to the next, each reason once: what a role suffers from is the reason of Ready as well.

    previous: the status as it was written last; empty for a new object.
    """
    told: dict[str, Change] = {}
    for change in _all(previous, current):
        told.setdefault(change.reason, change)
    return tuple(told.values())


def _all(previous: JsonObject, current: JsonObject) -> Iterator[Change]:
    for type_ in TOLD:
        before, after = entry_of(previous, type_), entry_of(current, type_)
        if not after or (before.get("status"), before.get("reason")) == (after["status"], after["reason"]):
            continue
        if before or after["reason"] not in QUIET_AT_FIRST:
            yield Change(type_.value, after["status"], after["reason"], after["message"])
