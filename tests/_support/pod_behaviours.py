"""The status that a played kubelet gives a pod: pure, from the pod and the behaviour that a test wants of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Behaviour:
    """One of the values and functions below makes it.

    after_seconds: from binding, or from the moment at which the policy chose it. linger_seconds: how long a deleted
    pod stays. ready: of the containers that run. container: the one that the rest speaks of; empty: all. waiting:
    reason for which it does not run. exit_code and message: of its last end. failed: reason for which the pod as a
    whole is over.
    """

    ready: bool = True
    after_seconds: float = 0.0
    linger_seconds: float = 0.0
    container: str = ""
    waiting: str = ""
    message: str = ""
    exit_code: int | None = None
    restarts: int = 0
    failed: str = ""
    ignored: bool = False

    def after(self, seconds: float) -> Behaviour:
        return dataclasses.replace(self, after_seconds=seconds)

    def lingering(self, seconds: float) -> Behaviour:
        """A deleted pod stays for this long; `math.inf`: for ever."""
        return dataclasses.replace(self, linger_seconds=seconds)


READY = Behaviour()
UNREADY = Behaviour(ready=False)
IGNORED = Behaviour(ignored=True)
"""As if the kubelet had not heard of the pod: it stays as the scheduler left it."""

Policy = Callable[[Manifest], Behaviour]


def waiting(reason: str, message: str = "", container: str = "") -> Behaviour:
    """A container that does not start, such as ImagePullBackOff or CreateContainerConfigError."""
    return Behaviour(ready=False, container=container, waiting=reason, message=message)


def crashing(message: str, exit_code: int = 1, restarts: int = 3, container: str = "") -> Behaviour:
    """A container in CrashLoopBackOff; `message` is what it left when it ended."""
    return Behaviour(False, 0.0, 0.0, container, "CrashLoopBackOff", message, exit_code, restarts)


def failed(reason: str, message: str = "") -> Behaviour:
    """The pod as a whole, such as Evicted."""
    return Behaviour(ready=False, failed=reason, message=message)


def by_labels(*rows: tuple[Mapping[str, str], Behaviour], otherwise: Behaviour = READY) -> Policy:
    """The behaviour of the first row whose labels the pod has all."""

    def policy(pod: Manifest) -> Behaviour:
        labels = pod["metadata"].get("labels", {})
        return next((behaviour for wanted, behaviour in rows if wanted.items() <= labels.items()), otherwise)

    return policy


def status(pod: Manifest, behaviour: Behaviour, address: str, node_address: str, now: str) -> Manifest:
    """The whole status of the pod. now: as Kubernetes writes times."""
    before = pod.get("status", {})
    containers = pod["spec"]["containers"]
    starting = pod["spec"].get("initContainers", [])
    held = any(behaviour.waiting and item["name"] == behaviour.container for item in starting)
    runs = not (behaviour.failed or behaviour.waiting)
    ready = behaviour.ready and runs
    conditions = {
        "PodReadyToStartContainers": not behaviour.failed,
        "Initialized": not held,
        "ContainersReady": ready,
        "Ready": ready,
    }
    restarted = behaviour.exit_code is not None
    phase = "Failed" if behaviour.failed else "Running" if runs or restarted or behaviour.container else "Pending"
    made: Manifest = {
        "phase": "Pending" if held and not restarted else phase,
        "conditions": _conditions(before.get("conditions", []), conditions, now),
        "startTime": before.get("startTime", now),
        "hostIP": node_address,
        "hostIPs": [{"ip": node_address}],
        "containerStatuses": [_container(item, behaviour, held, now) for item in containers],
        "initContainerStatuses": [_initial(item, behaviour, now) for item in starting],
        "reason": behaviour.failed or None,
        "message": behaviour.message if behaviour.failed else None,
    }
    if not behaviour.failed:
        made |= {"podIP": address, "podIPs": [{"ip": address}]}
    return made


def _conditions(before: list[Manifest], wanted: Mapping[str, bool], now: str) -> list[Manifest]:
    """Those of others stay; a time moves only when the condition does."""
    kept = {item["type"]: item for item in before}
    for kind, holds in wanted.items():
        value = "True" if holds else "False"
        if kept.get(kind, {}).get("status") != value:
            kept[kind] = {"type": kind, "status": value, "lastTransitionTime": now}
            if not holds and kind in ("Ready", "ContainersReady"):
                kept[kind]["reason"] = "ContainersNotReady"
    return list(kept.values())


def _container(item: Manifest, behaviour: Behaviour, held: bool, now: str) -> Manifest:
    if held:
        return _entry(item, {"waiting": {"reason": "PodInitializing"}}, ready=False)
    concerned = behaviour.container in ("", item["name"])
    if behaviour.failed:
        return _entry(item, {"terminated": _end(137, "Error", "", now)}, ready=False)
    if behaviour.waiting and concerned:
        return _waits(item, behaviour, now)
    return _entry(item, {"running": {"startedAt": now}}, ready=behaviour.ready or not concerned)


def _initial(item: Manifest, behaviour: Behaviour, now: str) -> Manifest:
    if behaviour.waiting and behaviour.container == item["name"]:
        return _waits(item, behaviour, now)
    if item.get("restartPolicy") == "Always":  # a sidecar
        return _entry(item, {"running": {"startedAt": now}}, ready=not behaviour.failed)
    return _entry(item, {"terminated": _end(0, "Completed", "", now)}, ready=True)


def _waits(item: Manifest, behaviour: Behaviour, now: str) -> Manifest:
    if behaviour.exit_code is None:
        return _entry(item, {"waiting": {"reason": behaviour.waiting, "message": behaviour.message}}, ready=False)
    entry = _entry(item, {"waiting": {"reason": behaviour.waiting}}, ready=False)
    last = {"terminated": _end(behaviour.exit_code, "Error", behaviour.message, now)}
    return entry | {"lastState": last, "restartCount": behaviour.restarts}


def _entry(item: Manifest, state: Manifest, ready: bool) -> Manifest:
    return {
        "name": item["name"],
        "image": item["image"],
        "imageID": f"test://{item['image']}",
        "ready": ready,
        "started": "running" in state,
        "restartCount": 0,
        "state": state,
        "lastState": {},
    }


def _end(code: int, reason: str, message: str, now: str) -> Manifest:
    return {"exitCode": code, "reason": reason, "message": message, "startedAt": now, "finishedAt": now}
