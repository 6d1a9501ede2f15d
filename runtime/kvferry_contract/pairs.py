"""What a router knows of the transfers between its groups: the answer to `GET /v1/pairs`, read by the operator.

The router proves each pairing of a prefill with a decode group by sending a canary request through it and comparing
what both sidecars recorded of its transfer: bytes counted and digests must be equal at both ends.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

VERSION = 1
MAX_BYTES = 4 * 1024 * 1024
"""Limit of the whole answer, checked before it is read."""


class PairsError(ValueError):
    """The report is not one that this operator can read."""


class PairState(StrEnum):
    PENDING = "pending"
    """No canary has come back yet."""
    VERIFIED = "verified"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Pair:
    """One pairing of groups of the same revision.

    prefill, decode: names of the groups' first pods. reason: a `Reason` of the runtime's errors, empty unless failed.
    changed_unix: when `state` last changed. Bytes, chunks, codec and lanes are those of the last proof.
    """

    prefill: str
    decode: str
    revision: str
    state: PairState
    reason: str
    message: str
    changed_unix: float
    transfer_id: str
    bytes_raw: int
    bytes_wire: int
    chunks: int
    codec: str
    lanes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SidecarFacts:
    """What one pod's sidecar says of itself, at its own start and since.

    memlock_bytes: limit of locked memory, None without limit. devices: RDMA devices that it sees. lanes: of its open
    sessions. Totals are of the transfers that it sent since it started; seconds are on the wire, and the part of them
    before the forward pass ended. max_relative_error: largest on samples, None when none was taken.
    """

    pod: str
    role: str
    fingerprint: str
    memlock_bytes: int | None
    devices: tuple[str, ...]
    lanes: tuple[str, ...]
    sent: int
    bytes_raw: int
    bytes_wire: int
    wire_seconds: float
    hidden_seconds: float
    max_relative_error: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """started_unix: of the router. routed: answered requests by route reason, since its start."""

    started_unix: float
    pairs: tuple[Pair, ...]
    sidecars: tuple[SidecarFacts, ...]
    routed: dict[str, int]


def dump(report: Report) -> str:
    return json.dumps({"version": VERSION, **asdict(report)}, sort_keys=True)


def load(text: str) -> Report:
    """Read what `dump` wrote.

    Raises:
        PairsError: not JSON, another version, a missing, unknown or ill-typed key.
    """
    try:
        raw = json.loads(text)
        if raw.pop("version") != VERSION:
            raise PairsError(f"the report's version is not {VERSION}: use operator and router of the same release")
        return Report(
            started_unix=float(raw["started_unix"]),
            pairs=tuple(_pair(item) for item in raw["pairs"]),
            sidecars=tuple(_facts(item) for item in raw["sidecars"]),
            routed={str(key): int(value) for key, value in raw["routed"].items()},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PairsError(f"report cannot be read: {error}") from error


def _pair(raw: dict[str, Any]) -> Pair:
    return Pair(**{**raw, "state": PairState(raw["state"]), "lanes": tuple(raw["lanes"])})


def _facts(raw: dict[str, Any]) -> SidecarFacts:
    return SidecarFacts(**{**raw, "devices": tuple(raw["devices"]), "lanes": tuple(raw["lanes"])})
