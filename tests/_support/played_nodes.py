"""Nodes that exist as objects alone: what they offer, and the lease by which they count as alive."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_CAPACITY = {"cpu": "1000", "memory": "10Ti", "ephemeral-storage": "10Ti", "pods": "10000"}


def node(name: str, address: str, resources: Mapping[str, str]) -> dict[str, Any]:
    """resources: further ones, such as {"rdma/hca": "4"}."""
    offered = {**_CAPACITY, **resources}
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now()}]
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "status": {
            "capacity": offered,
            "allocatable": offered,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        },
    }


def lease(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now(".%f")},
    }


def now(fraction: str = "") -> str:
    """As Kubernetes writes times; Lease wants `.%f`."""
    return datetime.now(UTC).strftime(f"%Y-%m-%dT%H:%M:%S{fraction}Z")
