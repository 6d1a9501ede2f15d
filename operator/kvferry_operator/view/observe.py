"""Step 1 of a pass: everything of one model that is known by now; nodes are read when they matter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvferry_operator.api import names
from kvferry_operator.errors import Forbidden
from kvferry_operator.kube import kinds
from kvferry_operator.kube.client import Cluster
from kvferry_operator.observation.live import controller, is_ours
from kvferry_operator.observation.observed import NodeCapacity, Nodes, Observed
from kvferry_operator.schedule import Key
from kvferry_operator.view.reports import Reports
from kvferry_operator.view.store import Store

JsonObject = Mapping[str, Any]

NODES_FRESH_SECONDS = 30.0
_WORKLOADS = frozenset({"StatefulSet", "ReplicaSet"})


class Observer:
    """Reads the store; asks the API server only for nodes."""

    def __init__(
        self, cluster: Cluster, store: Store, reports: Reports, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._reports = reports
        self._clock = clock
        self._nodes: Nodes | None = None
        self._nodes_read = 0.0

    async def observe(self, key: Key) -> Observed | None:
        """The model with its children and pods; None when there is no such model or it is being deleted."""
        raw = self._store.model(key)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return None
        children = self._store.children(key)
        pods = tuple(pod for pod in self._store.pods(key) if belongs(pod, raw, children))
        return Observed(
            raw=raw,
            children=children,
            pods=pods,
            nodes=await self._read_nodes() if asks_for_devices(raw) else None,
            report=self._reports.latest(key),
        )

    async def _read_nodes(self) -> Nodes:
        now = self._clock()
        if self._nodes is None or now - self._nodes_read > NODES_FRESH_SECONDS:
            try:
                listed = await self._cluster.list(kinds.NODE, None)
            except Forbidden as error:
                self._nodes = Nodes(None, str(error))
            else:
                self._nodes = Nodes(tuple(capacity(node) for node in listed if not node["spec"].get("unschedulable")))
            self._nodes_read = now
        return self._nodes


def belongs(pod: JsonObject, model: JsonObject, children: Iterable[JsonObject]) -> bool:
    """Whether a pod that carries the model's label was made by a workload of the model.

    A workload that is gone counts too, since its pods drain for a while; one of that name that somebody else owns
    does not.
    """
    owner = controller(pod)
    prefix = f"{names.base(model['metadata']['name'])}-"
    if owner.get("kind") not in _WORKLOADS or not str(owner.get("name", "")).startswith(prefix):
        return False
    workload = next((child for child in children if child["metadata"]["uid"] == owner["uid"]), None)
    return workload is None or is_ours(workload, model)


def ready_routers(pods: Iterable[JsonObject]) -> tuple[str, ...]:
    """Names of the router pods that can be asked."""
    return tuple(pod["metadata"]["name"] for pod in pods if is_ready_router(pod))


def is_ready_router(pod: JsonObject) -> bool:
    metadata = pod["metadata"]
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return (
        (metadata.get("labels") or {}).get(names.LABEL_ROLE) == "router"
        and not metadata.get("deletionTimestamp")
        and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    )


def asks_for_devices(raw: JsonObject) -> bool:
    """Whether the object asks for RDMA devices, as far as it can be read: it may be invalid."""
    spec = raw.get("spec")
    roles = (spec.get(role) for role in ("prefill", "decode")) if isinstance(spec, Mapping) else ()
    rdma = (role.get("rdma") for role in roles if isinstance(role, Mapping))
    return any(isinstance(part, Mapping) and part.get("mode") == "devicePlugin" for part in rdma)


def capacity(node: JsonObject) -> NodeCapacity:
    """What a node offers of extended resources: those with a domain, in whole numbers."""
    offered = (node.get("status") or {}).get("allocatable") or {}
    return NodeCapacity(
        name=node["metadata"]["name"],
        allocatable={name: int(amount) for name, amount in offered.items() if "/" in name and str(amount).isdigit()},
    )
