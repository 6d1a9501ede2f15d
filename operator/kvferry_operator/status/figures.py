"""`status.transfer`: what transfers achieved, written seldom enough that a steady model causes no write. Pure.

Totals grow with every request. They are written again when something that matters changed (the way, the codec, a new
proof), or when one moved by more than a quarter and the last time is five minutes ago.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from kvferry_contract.config import Role
from kvferry_contract.pairs import Pair, PairState, SidecarFacts
from kvferry_operator.api import names
from kvferry_operator.observation.live import labels
from kvferry_operator.observation.times import moment_of, timestamp
from kvferry_operator.status.conditions import Finding
from kvferry_operator.status.scene import Scene
from kvferry_operator.status.transfer import all_proved, current_pairs, proof_stands, ready_since

REFRESH_SECONDS = 300
REFRESH_SHARE = 0.25
_MOST = (1 << 63) - 1


def transfer(scene: Scene, finding: Finding, now: datetime) -> dict[str, Any]:
    """finding: TransferVerified as it will be written. Empty while nothing is known."""
    if scene.is_aggregated:
        return {}
    before = dict(scene.previous.get("transfer") or {})
    decided = [pair for pair in current_pairs(scene) if pair.state is not PairState.PENDING]
    if not decided:
        return before
    found = _found(_sidecars(scene), decided)
    steady = not _differs(before, found) and not _moved(before, found, now)
    if not finding.holds or not all_proved(scene, current_pairs(scene)):
        # without a new proof the time of the last one stays, and so does what failed transfers do not tell
        return before if steady else {**before, **found}
    if steady and proof_stands(scene):
        return before
    return {**found, "verifiedTime": timestamp(max([now, *ready_since(scene)]))}


def fingerprint(scene: Scene) -> str:
    """What all sidecars of the revision that is wanted agree on; empty if nothing, or if they do not agree."""
    told = {facts.fingerprint for facts in _sidecars(scene) if facts.fingerprint}
    if not told and (scene.previous.get("revisions") or {}).get("update") == scene.revisions.update:
        return str(scene.previous.get("fingerprint") or "")
    return told.pop()[:128] if len(told) == 1 else ""


def _differs(before: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """In what is no figure, or by a figure that was not known before."""
    changed = any(before.get(key) != found.get(key) for key in ("transport", "codec") if key in found)
    return changed or not found.keys() <= before.keys()


def _moved(before: Mapping[str, Any], found: Mapping[str, Any], now: datetime) -> bool:
    written = moment_of(before.get("verifiedTime"))
    if written is None or (now - written).total_seconds() < REFRESH_SECONDS:
        return False
    return any(_is_far(before.get(key), value) for key, value in found.items() if key not in ("transport", "codec"))


def _is_far(before: object, value: object) -> bool:
    old, new = _number(before), _number(value)
    return abs(new - old) > REFRESH_SHARE * abs(old)


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 0.0


def _found(sidecars: Iterable[SidecarFacts], pairs: Iterable[Pair]) -> dict[str, Any]:
    senders = [facts for facts in sidecars if facts.role == Role.PREFILL and facts.sent > 0]
    pairs = list(pairs)
    raw, wire = (_total(senders, key) for key in ("bytes_raw", "bytes_wire"))
    if not raw:
        # before the first request of a user there are only the canaries
        raw, wire = (_total(pairs, key) for key in ("bytes_raw", "bytes_wire"))
    seconds, hidden = (_seconds(senders, key) for key in ("wire_seconds", "hidden_seconds"))
    errors = [facts.max_relative_error for facts in senders if facts.max_relative_error is not None]
    found: dict[str, Any] = {
        "transport": _joined((lane.partition(":")[0] for pair in pairs for lane in pair.lanes), 128),
        "codec": _joined((pair.codec for pair in pairs), 64),
        "bytesRaw": raw,
        "bytesWire": wire,
    }
    if wire:
        found["compressionRatio"] = _decimal(raw / wire)
    if errors and all(map(math.isfinite, errors)):
        found["maxRelativeError"] = _decimal(max(errors))
    if seconds > 0:
        found["overlapPercent"] = min(100, max(0, round(100 * hidden / seconds)))
        found["goodputBytesPerSecond"] = min(int(raw / seconds), _MOST)
    return {key: value for key, value in found.items() if value != ""}


def _sidecars(scene: Scene) -> list[SidecarFacts]:
    """Of pods that are there and of the revision that is wanted."""
    if scene.report is None:
        return []
    there = {
        str(pod["metadata"]["name"])
        for pod in scene.observed.pods
        if labels(pod).get(names.LABEL_REVISION) == scene.revisions.update
    }
    return [facts for facts in scene.report.sidecars if facts.pod in there]


def _total(counted: Iterable[SidecarFacts | Pair], key: str) -> int:
    return min(_MOST, sum(max(0, int(getattr(each, key))) for each in counted))


def _seconds(senders: Iterable[SidecarFacts], key: str) -> float:
    values = (float(getattr(facts, key)) for facts in senders)
    return sum(value for value in values if math.isfinite(value) and value > 0)


def _joined(parts: Iterable[str], most: int) -> str:
    return ",".join(sorted({part for part in parts if part}))[:most]


def _decimal(value: float) -> str:
    """In the form of decimal numbers in the object: no exponent, no needless digits."""
    return f"{value:.6f}"[:32].rstrip("0").rstrip(".")
