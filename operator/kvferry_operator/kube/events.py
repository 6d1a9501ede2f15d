"""Events for changes of a model's conditions. Pure.

An Event's name follows from the change that it tells, so that a pass that is repeated after a crash makes no second
one: the API server says that it is there already. Going back and forth between the same two reasons is told once for
each time that the condition's status changed, not once for each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from kvferry_operator.api import names
from kvferry_operator.desired.stage import Manifest
from kvferry_operator.kube.kinds import EVENT

CONTROLLER = f"{names.GROUP}/operator"

_MAX_NAME = 253
_MAX_INSTANCE = 128
_MAX_REASON = 128
_MAX_NOTE_BYTES = 1024
_HASH_LENGTH = 16

_CHECKS = frozenset({"SpecValid", "FabricReady", "TransferVerified"})
_STALLED = "Stalled"
_EXPECTED = frozenset(
    {
        "Complete",
        "NotRequired",
        "Paused",
        "RollingOut",
        "ScaledToZero",
        "Starting",
        "Terminating",
        "TransferPending",
    }
)
"""Reasons that follow from what somebody asked for, or that pass by themselves: an edit is nothing to be warned of."""
_ALWAYS_BAD = frozenset({"RestartsExhausted"})
"""Reasons that need a person whatever was before: here the group may have been unready for a while."""

JsonObject = Mapping[str, Any]


class Change(Protocol):
    """A condition as it is now, after another status or reason."""

    @property
    def type(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def message(self) -> str: ...


def event(model: JsonObject, change: Change, now: datetime, instance: str) -> Manifest:
    """The Event that tells of `change`, to be created once.

    model: as read, with the condition as it was before. instance: this process, such as the name of its pod.
    """
    metadata = model["metadata"]
    before = _condition(model, change.type)
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": _name(metadata, change, before), "namespace": metadata["namespace"]},
        "eventTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": CONTROLLER,
        "reportingInstance": (instance or CONTROLLER)[:_MAX_INSTANCE],
        "action": change.type,
        "reason": change.reason[:_MAX_REASON],
        "type": "Warning" if _is_bad(change, before) else "Normal",
        "regarding": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "note": _shortened(f"{change.type} is {change.status}: {change.message}", _MAX_NOTE_BYTES),
    }


def _name(metadata: JsonObject, change: Change, before: JsonObject) -> str:
    told = (
        metadata["uid"],
        change.type,
        change.status,
        change.reason,
        before.get("lastTransitionTime"),
        before.get("reason"),
    )
    digest = hashlib.sha256("\n".join(map(str, told)).encode()).hexdigest()[:_HASH_LENGTH]
    stem = metadata["name"][: _MAX_NAME - _HASH_LENGTH - 1].rstrip(".-")
    return f"{stem}.{digest}"


def _is_bad(change: Change, before: JsonObject) -> bool:
    """Whether a user should look: a check failed, something that was so is not so any more, or nothing moves."""
    if change.type == _STALLED:
        return change.status == "True"
    if change.reason in _ALWAYS_BAD:
        return True
    if change.reason in _EXPECTED:
        return False
    return change.status == "False" and (change.type in _CHECKS or before.get("status") == "True")


def _condition(model: JsonObject, type_: str) -> JsonObject:
    conditions = (model.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == type_), {})


def _shortened(text: str, most: int) -> str:
    """At most so many bytes, no character cut in two."""
    content = text.encode()
    return text if len(content) <= most else content[: most - len("…".encode())].decode(errors="ignore") + "…"
