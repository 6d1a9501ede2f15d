"""FabricReady: whether the RDMA devices that were asked for are there, can be used, and are. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from kvferry_contract.config import OnFallback, TransportKind
from kvferry_contract.pairs import SidecarFacts
from kvferry_operator.api import names, quantity
from kvferry_operator.api.types import DisaggregatedModel, Rdma, RdmaMode
from kvferry_operator.desired.stage import roles
from kvferry_operator.observation.live import labels
from kvferry_operator.observation.observed import NodeCapacity
from kvferry_operator.status.conditions import Finding, Is, Type
from kvferry_operator.status.scene import Scene

RDMA_TRANSPORTS = ("rc", "dc", "ud", "srd", "gga")
"""What the names of UCX's transports over RDMA start with, before the underscore."""
_SHOWN = 10


def fabric(scene: Scene) -> Finding:
    model = scene.model
    if model is None:
        return _finding(Is.UNKNOWN, "SpecInvalid", "nothing is known of an object that is invalid")
    asked = asked_for(model)
    if not asked:
        return _finding(Is.TRUE, "NotRequested", "no role asks for RDMA devices")
    lacking = _lacking_devices(scene, asked)
    if lacking is not None:
        return lacking
    facts = _facts(scene, asked)
    if not facts:
        return _unheard(scene)
    return _of_facts(model, facts)


def asked_for(model: DisaggregatedModel) -> Mapping[str, Rdma]:
    """The devices of each role whose pods get any."""
    if model.spec.prefill is None:
        return {}
    return {role.value: spec.rdma for role, spec in roles(model) if spec.rdma.mode is RdmaMode.DEVICE_PLUGIN}


def blocks_ready(scene: Scene, finding: Finding) -> bool:
    """Whether the object says that it must not serve without RDMA."""
    if scene.model is None or finding.status is not Is.FALSE:
        return False
    transfer = scene.model.spec.transfer
    return transfer.transport is TransportKind.RDMA or transfer.on_fallback is OnFallback.FAIL


def _finding(status: Is, reason: str, message: str) -> Finding:
    return Finding(Type.FABRIC_READY, status, reason, message)


def _lacking_devices(scene: Scene, asked: Mapping[str, Rdma]) -> Finding | None:
    """Nodes are asked only while a pod is missing: a plugin that starts anew offers nothing for a moment."""
    nodes = scene.observed.nodes.nodes if scene.observed.nodes else None
    if nodes is None or all(state.complete >= state.desired for state in scene.groups if state.name in asked):
        return None
    assert scene.model is not None
    specs = {role.value: spec for role, spec in roles(scene.model)}
    for resource in sorted({rdma.resource_name for rdma in asked.values()}):
        sizes = sorted(
            (
                rdma.count
                for role, rdma in asked.items()
                for _ in range(_desired(scene, role) * specs[role].parallelism.pipeline)
                if rdma.resource_name == resource
            ),
            reverse=True,
        )
        if not _fits(sizes, nodes, resource):
            text = f"{sum(sizes)} of {resource} are needed for {len(sizes)} pods; {_offered(nodes, resource)}"
            return _finding(
                Is.FALSE,
                "NodesLackDevices",
                f"{text}: install the device plugin, add nodes, or lower replicas or rdma.count",
            )
    return None


def _desired(scene: Scene, role: str) -> int:
    return next((state.desired for state in scene.groups if state.name == role), 0)


def _fits(sizes: Sequence[int], nodes: Iterable[NodeCapacity], resource: str) -> bool:
    """Whether pods with so many devices each, the largest first, find places on empty nodes."""
    free = [-node.allocatable.get(resource, 0) for node in nodes]
    heapq.heapify(free)
    for size in sizes:
        if not free or -free[0] < size:
            return False
        heapq.heapreplace(free, free[0] + size)
    return True


def _offered(nodes: Sequence[NodeCapacity], resource: str) -> str:
    if not nodes:
        return "there is no node"
    by_name = sorted(nodes, key=lambda node: (-node.allocatable.get(resource, 0), node.name))
    parts = [f"node {node.name} has {node.allocatable.get(resource, 0)}" for node in by_name[:_SHOWN]]
    rest = by_name[_SHOWN:]
    if rest:
        parts.append(f"{len(rest)} more nodes have {sum(node.allocatable.get(resource, 0) for node in rest)}")
    return ", ".join(parts)


def _facts(scene: Scene, asked: Mapping[str, Rdma]) -> list[SidecarFacts]:
    """What sidecars that were given devices tell, of pods that are there and of the revision that is wanted."""
    if scene.report is None:
        return []
    there = {
        str(pod["metadata"]["name"])
        for pod in scene.observed.pods
        if labels(pod).get(names.LABEL_REVISION) == scene.revisions.update
        and labels(pod).get(names.LABEL_ROLE) in asked
    }
    return sorted((facts for facts in scene.report.sidecars if facts.pod in there), key=lambda facts: facts.pod)


def _unheard(scene: Scene) -> Finding:
    nodes = scene.observed.nodes
    if nodes is not None and nodes.nodes is None:
        why = nodes.why or "no permission to list nodes"
        return _finding(
            Is.UNKNOWN,
            "NodesNotReadable",
            f"{why}; whether the devices are there is known when the sidecars have started",
        )
    return _finding(Is.UNKNOWN, "Pending", "no sidecar with RDMA devices has reported yet")


def _of_facts(model: DisaggregatedModel, facts: Sequence[SidecarFacts]) -> Finding:
    ring = model.spec.transfer.buffer_bytes
    tight = [each for each in facts if each.memlock_bytes is not None and each.memlock_bytes < ring]
    if tight:
        limit = quantity.from_bytes(max(0, tight[0].memlock_bytes or 0))
        return _finding(
            Is.FALSE,
            "MemlockTooLow",
            f"pod {tight[0].pod}{_more(tight)} may lock {limit} of memory, transfer.bufferBytes is "
            f"{quantity.from_bytes(ring)}: raise LimitMEMLOCK in the container runtime's service on the nodes",
        )
    bare = [each for each in facts if not each.devices]
    if bare:
        return _finding(
            Is.FALSE,
            "NoDevices",
            f"pod {bare[0].pod}{_more(bare)} was given devices by Kubernetes, but has none in /dev/infiniband: "
            "check what the device plugin mounts",
        )
    connected = [each for each in facts if each.lanes]
    wants_rdma = model.spec.transfer.transport in (TransportKind.AUTO, TransportKind.RDMA)
    fallen = [each for each in connected if wants_rdma and not uses_rdma(each.lanes)]
    if fallen:
        lanes = ", ".join(fallen[0].lanes)
        return _finding(
            Is.FALSE,
            "FellBackToTcp",
            f"pod {fallen[0].pod}{_more(fallen)} has RDMA devices, but its sessions use {lanes}: check transfer.ucx, "
            "and that the devices of both ends are on one fabric",
        )
    if not connected:
        return _finding(Is.UNKNOWN, "Pending", "devices are there; no session between sidecars is open yet")
    return _finding(
        Is.TRUE, "Ready", f"sessions use {', '.join(sorted({lane for each in connected for lane in each.lanes}))}"
    )


def uses_rdma(lanes: Iterable[str]) -> bool:
    """lanes: as `transport:device`."""
    return any(lane.partition(":")[0].split("_")[0] in RDMA_TRANSPORTS for lane in lanes)


def _more(facts: Sequence[SidecarFacts]) -> str:
    return f" (and {len(facts) - 1} more)" if len(facts) > 1 else ""
