"""What is wrong with a pod, in words that stay the same while it is wrong in the same way. Pure.

The kubelet says the same in turns (`ErrImagePull`, `ImagePullBackOff`; crashed, running, waiting to run again), with
times and counts in it. A status that repeated that would be written anew all the time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kvferry_operator.api import names
from kvferry_operator.observation.live import JsonObject, condition, containers, is_leaving, is_ready, labels

CRASHES_BEFORE_HELP = 3
"""Restarts after which a container will hardly come up by itself."""
PROBE_NOT_PASSING = "ProbeNotPassing"
_MAX_TEXT = 300


class Outlook(IntEnum):
    """What ends a trouble."""

    PASSES = 0
    """Time: it is on its way."""
    WAITS = 1
    """Something outside, such as a node that is added. Nothing moves meanwhile, and nobody may have to do anything."""
    NEEDS_HELP = 2
    """A person."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod or a role is not ready. rank: the lower, the more telling."""

    rank: int
    reason: str
    message: str
    outlook: Outlook


def trouble(pod: JsonObject) -> Trouble | None:
    """The most telling reason why a pod is not ready; None if it is."""
    if is_ready(pod):
        return None
    if is_leaving(pod):
        return _leaving(pod)
    found = [*_of_pod(pod), *(each for one in containers(pod) for each in _of_container(pod, one))]
    return min(found, key=lambda each: each.rank) if found else _starting(pod)


def steady(text: str) -> str:
    """A message of somebody else without what changes by itself, in one line."""
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:?\d\d)?", "", text)
    text = re.sub(r'\(pod: "[^"]*", container: [^)]*\)', "", text)
    text = re.sub(r"\b(0x[0-9a-f]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,})\b", "…", text)
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    text = " ".join(text.split()).strip(" :")
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _leaving(pod: JsonObject) -> Trouble:
    ready = condition(pod, "Ready")
    lost = ready.get("status") == "Unknown" or (pod.get("status") or {}).get("reason") == "NodeLost"
    if lost:
        node = (pod.get("spec") or {}).get("nodeName", "")
        message = (
            f"is being deleted, but its node {node} does not answer: bring the node back, or delete it from the cluster"
        )
        return Trouble(7, "NodeLost", message, Outlook.WAITS)
    kept = pod["metadata"].get("finalizers")
    if kept:
        return Trouble(
            8, "Terminating", f"is being deleted and waits for its finalizers {', '.join(kept)}", Outlook.WAITS
        )
    return Trouble(11, "Terminating", "is being deleted and drains", Outlook.PASSES)


def _of_pod(pod: JsonObject) -> Iterator[Trouble]:
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        why = steady(str(status.get("message") or "")) or "no reason was given"
        yield Trouble(5, _word(status.get("reason"), "PodFailed"), f"failed: {why}", Outlook.PASSES)
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        reason = _word(scheduled.get("reason"), "Unschedulable")
        why = _why_unschedulable(str(scheduled.get("message") or ""))
        yield Trouble(2, reason, f"cannot be placed on any node: {why}", Outlook.WAITS)
    ready = condition(pod, "Ready")
    if ready.get("status") == "Unknown":
        node = (pod.get("spec") or {}).get("nodeName", "")
        yield Trouble(7, "NodeLost", f"its node {node} does not answer", Outlook.WAITS)


def _why_unschedulable(message: str) -> str:
    """The scheduler's reasons without its counts of nodes, what is missing first."""
    text = re.sub(r"^\d+/\d+ nodes are available: ?", "", message.partition("preemption:")[0]).strip(" .")
    lacking = sorted(set(re.findall(r"Insufficient ([\w./-]*\w)", text)))
    others = sorted({re.sub(r"^\d+ ", "", part).strip(" .") for part in text.split(", ") if "Insufficient" not in part})
    parts = [f"too little {', '.join(lacking)}"] if lacking else []
    return steady("; ".join([*parts, *filter(None, others)])) or "the scheduler gives no reason"


def _of_container(pod: JsonObject, container: JsonObject) -> Iterator[Trouble]:
    if container.get("ready"):
        return
    state = container.get("state") or {}
    waiting, running, ended = (state.get(key) or {} for key in ("waiting", "running", "terminated"))
    reason, name = str(waiting.get("reason") or ""), str(container.get("name", ""))
    if reason in _CONFIG:
        why = steady(str(waiting.get("message") or "")) or "its configuration is not there"
        yield Trouble(0, reason, f"container {name} cannot be made: {why}", Outlook.NEEDS_HELP)
    elif reason in _IMAGE:
        yield Trouble(1, _IMAGE[reason], _about_image(container, reason), Outlook.NEEDS_HELP)
    elif ended.get("exitCode") == 0 and not running:
        return
    else:
        yield from _of_runs(pod, container, ended or (container.get("lastState") or {}).get("terminated") or {})
        if running and container.get("started"):
            yield Trouble(
                9, PROBE_NOT_PASSING, f"container {name} runs, but its readiness probe does not pass", Outlook.WAITS
            )


_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_IMAGE = {
    "ErrImagePull": "ImagePullBackOff",
    "ImagePullBackOff": "ImagePullBackOff",
    "RegistryUnavailable": "ImagePullBackOff",
    "InvalidImageName": "InvalidImageName",
    "ErrImageNeverPull": "ErrImageNeverPull",
}


def _about_image(container: JsonObject, reason: str) -> str:
    name, image = container.get("name", ""), container.get("image", "")
    if reason == "InvalidImageName":
        return f"image {image} of container {name} has no legal name"
    if reason == "ErrImageNeverPull":
        return f"image {image} of container {name} is not on the node, and the pull policy is Never"
    return (
        f"image {image} of container {name} cannot be pulled: check its name and tag, whether the node reaches the "
        "registry, and imagePullSecrets in the template"
    )


def _of_runs(pod: JsonObject, container: JsonObject, last: JsonObject) -> Iterator[Trouble]:
    """last: how its latest run ended; empty if it never ran or still runs for the first time."""
    name, code = str(container.get("name", "")), last.get("exitCode")
    helpless = int(container.get("restartCount") or 0) >= CRASHES_BEFORE_HELP
    outlook = Outlook.NEEDS_HELP if helpless else Outlook.PASSES
    if last.get("reason") == "OOMKilled":
        yield Trouble(3, "OOMKilled", _about_memory(pod, name), outlook)
    elif code:
        said = last_line(str(last.get("message") or "")) or f"it said nothing; see kubectl logs --previous -c {name}"
        yield Trouble(4, "CrashLoopBackOff", f"container {name} ended with exit code {code}: {said}", outlook)


def last_line(message: str) -> str:
    """The last line that a container wrote; of a log in JSON, what it says."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return ""
    line: Any = lines[-1]
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        line = next((content[key] for key in ("message", "msg", "event", "error") if content.get(key)), line)
    return steady(str(line))


def _about_memory(pod: JsonObject, name: str) -> str:
    spec = pod.get("spec") or {}
    known = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    resources = next((each.get("resources") or {} for each in known if each.get("name") == name), {})
    limit = (resources.get("limits") or {}).get("memory")
    role = labels(pod).get(names.LABEL_ROLE, "decode")
    field = "spec.sidecar.resources" if name == names.CONTAINER_SIDECAR else f"spec.{role}.resources"
    if limit is None:
        return f"container {name} was killed because the node ran out of memory: request more in {field}"
    return f"container {name} used more memory than its limit {limit}: raise it in {field}"


def _starting(pod: JsonObject) -> Trouble:
    waits = [str(each.get("name", "")) for each in containers(pod) if not each.get("ready")]
    if not waits:
        return Trouble(10, "Starting", "is being prepared on its node" if _placed(pod) else "was made", Outlook.PASSES)
    return Trouble(10, "Starting", f"container {waits[0]} is starting{_needs(pod)}", Outlook.PASSES)


def _placed(pod: JsonObject) -> bool:
    return bool((pod.get("spec") or {}).get("nodeName"))


def _needs(pod: JsonObject) -> str:
    """What must be there for volumes to be mounted, while no container has run: the kubelet tells it nowhere else."""
    if any((each.get("state") or {}).get("waiting", {}).get("reason") != "ContainerCreating" for each in _main(pod)):
        return ""
    found = []
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        for source, key, kind in _VOLUMES:
            if (volume.get(source) or {}).get(key):
                found.append(f"{kind} {volume[source][key]}")
    return f"; it needs {', '.join(found)}" if found else ""


_VOLUMES = (
    ("secret", "secretName", "Secret"),
    ("configMap", "name", "ConfigMap"),
    ("persistentVolumeClaim", "claimName", "claim"),
)


def _main(pod: JsonObject) -> list[JsonObject]:
    return list((pod.get("status") or {}).get("containerStatuses") or ())


def _word(text: object, otherwise: str) -> str:
    """A reason that a condition can carry."""
    return (
        str(text)
        if isinstance(text, str) and re.fullmatch(r"[A-Za-z]([A-Za-z0-9_]{0,120}[A-Za-z0-9])?", text)
        else otherwise
    )
