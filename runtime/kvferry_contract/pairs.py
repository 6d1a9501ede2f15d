"""What a router knows of the transfers between its groups: the answer to `GET /v1/pairs`, read by the operator.

The router proves each pairing of a prefill with a decode group by sending a canary request through it and comparing
what both sidecars recorded of its transfer: bytes counted and digests must be equal at both ends.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

VERSION = 1
MAX_BYTES = 4 * 1024 * 1024
"""Limit of the whole answer, checked before it is read."""


class PairsError(ValueError):
    """The report is not one that this operator can read."""


class PairState(StrEnum):
    PENDING = "pending"
    """No canary has decided anything yet; the message says what came of the last one."""
    VERIFIED = "verified"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Pair:
    """One pairing of groups of the same revision.

    Pairs of groups that are not ready are left out.

    prefill, decode: names of the groups' first pods. reason: a `Reason` of the runtime's errors, empty unless failed.
    changed_unix: when `state` last changed. Bytes, chunks, codec and lanes are those of the last proof; a pair that
    failed has them only for `fell_back`: all bytes arrived, by other lanes than asked for.
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
    """What one pod's sidecar says of itself, at its own start and since. Pods whose sidecar is silent are left out.

    fingerprint: digest of its engine's, equal at pods that understand each other; empty before an engine was attached.
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


_Read = TypeVar("_Read", Pair, SidecarFacts)


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
    return _well_typed(Pair(**{**raw, "state": PairState(raw["state"]), "lanes": tuple(raw["lanes"])}))


def _facts(raw: dict[str, Any]) -> SidecarFacts:
    return _well_typed(SidecarFacts(**{**raw, "devices": tuple(raw["devices"]), "lanes": tuple(raw["lanes"])}))


def _well_typed(read: _Read) -> _Read:
    """The same. Whoever answers need not be our router.

    Raises:
        PairsError: a value is not of its field's type.
    """
    for name, hint in _HINTS[type(read)].items():
        value = getattr(read, name)
        if not _fits(value, hint):
            raise PairsError(f"{name} must be {hint}, found {type(value).__name__}")
    return read


_HINTS: dict[type, dict[str, Any]] = {kind: get_type_hints(kind) for kind in (Pair, SidecarFacts)}


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) is tuple:
        return all(isinstance(each, str) for each in value) if isinstance(value, tuple) else False
    allowed = get_args(hint) or (hint,)
    if isinstance(value, bool):
        return bool in allowed
    return isinstance(value, allowed) or (float in allowed and isinstance(value, int))
