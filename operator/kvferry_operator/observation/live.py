"""What objects in the cluster say of themselves: owner, place, readiness. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvferry_contract.config import Role
from kvferry_operator.api import names

JsonObject = Mapping[str, Any]

BACK_OFF = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Reasons of waiting that no patience ends: the kubelet tries the same again and again."""


def controller(manifest: JsonObject) -> JsonObject:
    """The owner reference that says who manages an object; empty if nobody does."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def is_ours(child: JsonObject, model: JsonObject) -> bool:
    """Whether this very model, not one before it of the same name, manages an object."""
    return bool(controller(child).get("uid") == model["metadata"]["uid"])


def labels(manifest: JsonObject) -> Mapping[str, str]:
    return manifest["metadata"].get("labels") or {}


def is_leaving(manifest: JsonObject) -> bool:
    return bool(manifest["metadata"].get("deletionTimestamp"))


def condition(manifest: JsonObject, kind: str) -> JsonObject:
    """The condition of that type in an object's status; empty if there is none."""
    found = (manifest.get("status") or {}).get("conditions") or ()
    return next((each for each in found if each.get("type") == kind), {})


def is_ready(pod: JsonObject) -> bool:
    return not is_leaving(pod) and condition(pod, "Ready").get("status") == "True"


def containers(pod: JsonObject) -> Iterator[JsonObject]:
    """What the kubelet tells of each container, in the order in which they start."""
    status = pod.get("status") or {}
    for key in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(key) or ()


def waiting_reason(container: JsonObject) -> str:
    return str(((container.get("state") or {}).get("waiting") or {}).get("reason") or "")


def is_broken(pod: JsonObject) -> bool:
    """Whether patience alone will not make it ready."""
    if is_ready(pod) or is_leaving(pod):
        return False
    if (pod.get("status") or {}).get("phase") == "Failed":
        return True
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return True
    return any(waiting_reason(container) in BACK_OFF for container in containers(pod))


def ordinal_of(pod: JsonObject) -> int | None:
    _, _, number = str(pod["metadata"]["name"]).rpartition("-")
    return int(number) if number.isascii() and number.isdigit() else None


def place_of(manifest: JsonObject) -> tuple[Role, str, int] | None:
    """Role, revision and stage of a child or pod; None for what belongs to no stage.

    A StatefulSet tells them by its selector, which nobody can change, others by their labels.
    """
    selector = (manifest.get("spec") or {}).get("selector") or {} if manifest.get("kind") == "StatefulSet" else {}
    given = selector.get("matchLabels") or labels(manifest)
    role, revision, stage = (given.get(key, "") for key in (names.LABEL_ROLE, names.LABEL_REVISION, names.LABEL_STAGE))
    if role not in (Role.PREFILL, Role.DECODE) or not revision or not (stage.isascii() and stage.isdigit()):
        return None
    return Role(role), revision, int(stage)
