"""Conditions: what was found, made into entries of a status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from kvferry_operator.observation.times import timestamp

JsonObject = Mapping[str, Any]

MAX_MESSAGE = 1024
MAX_REASON = 128


class Type(StrEnum):
    """In the order in which they stand in a status.

    Ready, Reconciling and Stalled are read by generic tools: Reconciling is True only while something moves by itself,
    Stalled only when a person has to do something, and never both.
    """

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    SPEC_VALID = "SpecValid"
    PREFILL_READY = "PrefillReady"
    DECODE_READY = "DecodeReady"
    ROUTER_READY = "RouterReady"
    FABRIC_READY = "FabricReady"
    TRANSFER_VERIFIED = "TransferVerified"
    RATIO_SATISFIED = "RatioSatisfied"


class Is(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition before it has a time. reason: one word. message: says what to do where something is to be done."""

    type: Type
    status: Is
    reason: str
    message: str

    @property
    def holds(self) -> bool:
        return self.status is Is.TRUE


def truth(value: bool) -> Is:
    return Is.TRUE if value else Is.FALSE


def render(findings: Iterable[Finding], previous: JsonObject, generation: int, now: datetime) -> list[dict[str, Any]]:
    """Entries for `conditions`. The time of a transition is that of the status alone, not of reason or message.

    previous: the status as it was written last.
    """
    return [_entry(finding, entry_of(previous, finding.type), generation, now) for finding in findings]


def entry_of(status: JsonObject, type_: str) -> JsonObject:
    """The condition of that type in a status; empty if there is none."""
    return next((each for each in status.get("conditions") or () if each.get("type") == type_), {})


def shortened(text: str, most: int = MAX_MESSAGE) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _entry(finding: Finding, before: JsonObject, generation: int, now: datetime) -> dict[str, Any]:
    kept = before.get("lastTransitionTime") if before.get("status") == finding.status else None
    return {
        "type": finding.type.value,
        "status": finding.status.value,
        "reason": finding.reason[:MAX_REASON],
        "message": shortened(finding.message),
        "observedGeneration": generation,
        "lastTransitionTime": str(kept or timestamp(now)),
    }
