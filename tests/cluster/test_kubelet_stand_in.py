"""The played kubelet makes of real pods what a test asks for, and the real controllers believe it."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

import control_plane as planes
from eventually import eventually_async
from kubelet_stand_in import KubeletStandIn
from pod_behaviours import IGNORED, READY, UNREADY, Behaviour, by_labels, crashing, failed, waiting


def _pod(name: str, **labels: str) -> dict[str, Any]:
    containers = [{"name": "main", "image": "main:1"}]
    sidecar = {"name": "side", "image": "side:1", "restartPolicy": "Always"}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": containers, "initContainers": [sidecar]},
    }


def _stateful_set(replicas: int) -> dict[str, Any]:
    template = _pod("", app="many")
    del template["metadata"]["name"]
    return {
        "metadata": {"name": "many"},
        "spec": {
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "serviceName": "many",
            "selector": {"matchLabels": {"app": "many"}},
            "template": template,
        },
    }


async def _status(plane: planes.ControlPlane, path: str, look: Any, what: str) -> Any:
    async def found() -> Any:
        status = (await asyncio.to_thread(plane.api.get, path)).get("status", {})
        return status if look(status) else None

    return await eventually_async(found, what)


def _ready(status: Any) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions", []))


def _lacks_devices(status: Any) -> bool:
    """The scheduler may have tried, and said so, before it knew of the node."""
    return any("Insufficient rdma/hca" in item.get("message", "") for item in status.get("conditions", []))


@pytest.mark.parametrize(
    ("behaviour", "phase", "state"),
    [
        (UNREADY, "Running", {"running"}),
        (waiting("ImagePullBackOff", "no such image"), "Pending", {"waiting"}),
        (crashing("out of memory", 137), "Running", {"waiting"}),
        (failed("Evicted", "disk"), "Failed", {"terminated"}),
    ],
    ids=["unready", "waiting", "crashing", "failed"],
)
async def test_a_pod_ends_where_its_policy_wants_it(
    control_plane: planes.ControlPlane, kubelet: KubeletStandIn, behaviour: Behaviour, phase: str, state: set[str]
) -> None:
    pods = f"/api/v1/namespaces/{control_plane.namespace()}/pods"
    kubelet.policy = by_labels(({"app": "odd"}, behaviour), otherwise=READY)
    for name in ("odd", "good"):
        control_plane.api.create(pods, _pod(name, app=name))

    odd = await _status(control_plane, f"{pods}/odd", lambda status: "containerStatuses" in status, "a status")
    await _status(control_plane, f"{pods}/good", _ready, "the other pod is ready")

    assert odd["phase"] == phase
    assert not _ready(odd)
    assert odd["containerStatuses"][0]["state"].keys() == state


async def test_a_sidecar_that_crashes_holds_the_pod_back_until_the_policy_lets_it_go(
    control_plane: planes.ControlPlane, kubelet: KubeletStandIn
) -> None:
    pods = f"/api/v1/namespaces/{control_plane.namespace()}/pods"
    kubelet.policy = lambda pod: crashing("no memlock", 78, container="side")
    control_plane.api.create(pods, _pod("one"))

    held = await _status(control_plane, f"{pods}/one", lambda status: "containerStatuses" in status, "a status")
    assert held["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert held["initContainerStatuses"][0]["lastState"]["terminated"]["message"] == "no memlock"

    kubelet.policy = lambda pod: READY
    await _status(control_plane, f"{pods}/one", _ready, "ready after all")


async def test_deleted_pods_go_when_the_policy_lets_them(
    control_plane: planes.ControlPlane, kubelet: KubeletStandIn
) -> None:
    pods = f"/api/v1/namespaces/{control_plane.namespace()}/pods"
    kubelet.policy = by_labels(({"app": "stuck"}, READY.lingering(math.inf)))
    for name in ("stuck", "swift"):
        control_plane.api.create(pods, _pod(name, app=name))
        await _status(control_plane, f"{pods}/{name}", _ready, f"{name} is ready")
        control_plane.api.delete(f"{pods}/{name}")

    async def names() -> list[str]:
        listed = await asyncio.to_thread(control_plane.api.get, pods)
        return [pod["metadata"]["name"] for pod in listed["items"]]

    async def only_stuck() -> bool:
        return await names() == ["stuck"]

    await eventually_async(only_stuck, "only the stuck pod is left")
    kubelet.policy = lambda pod: READY

    async def none() -> bool:
        return await names() == []

    await eventually_async(none, "the stuck pod went as well")


async def test_a_pod_that_asks_for_more_devices_than_the_node_has_is_not_scheduled(
    control_plane: planes.ControlPlane, kubelet: KubeletStandIn
) -> None:
    pods = f"/api/v1/namespaces/{control_plane.namespace()}/pods"
    for name, count in (("fits", "2"), ("greedy", "3")):
        pod = _pod(name)
        pod["spec"]["containers"][0]["resources"] = {"limits": {"rdma/hca": count}}
        control_plane.api.create(pods, pod)

    await _status(control_plane, f"{pods}/fits", _ready, "the pod that fits is ready")
    await _status(control_plane, f"{pods}/greedy", _lacks_devices, "the refusal")


async def test_the_real_stateful_set_controller_counts_played_pods_across_an_end_of_the_api_server(
    control_plane: planes.ControlPlane, kubelet: KubeletStandIn
) -> None:
    sets = f"/apis/apps/v1/namespaces/{control_plane.namespace()}/statefulsets"
    kubelet.policy = lambda pod: IGNORED
    control_plane.api.create(sets, _stateful_set(20))
    await _status(control_plane, f"{sets}/many", lambda status: status.get("replicas") == 20, "20 pods are made")

    await asyncio.to_thread(control_plane.kill_api_server)
    kubelet.policy = lambda pod: READY
    await asyncio.to_thread(control_plane.start_api_server)

    await _status(control_plane, f"{sets}/many", lambda status: status.get("readyReplicas") == 20, "20 are ready")
