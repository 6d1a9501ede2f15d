"""Which pods are a model's, and what a node offers."""

from __future__ import annotations

from typing import Any

import pytest

import builders
from kvferry_operator.view.observe import asks_for_devices, belongs, capacity, is_ready_router

MODEL = builders.raw()
MODEL["metadata"]["uid"] = "model"


def workload(uid: str, owner: str) -> dict[str, Any]:
    owners = [{"kind": "DisaggregatedModel", "name": "tiny", "uid": owner, "controller": True}]
    return {"kind": "StatefulSet", "metadata": {"name": "w", "uid": uid, "ownerReferences": owners}}


def pod(kind: str = "StatefulSet", name: str = "tiny-decode-abc-s0", uid: str = "w", **more: Any) -> dict[str, Any]:
    owners = [{"kind": kind, "name": name, "uid": uid, "controller": True}]
    return {"metadata": {"name": "p", "ownerReferences": owners, **more}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(pod(), True, id="of our workload"),
        pytest.param(pod(uid="gone"), True, id="of a workload that is gone: it drains"),
        pytest.param(pod("ReplicaSet", "tiny-router-5d8f", "rs"), True, id="of the router's replica set"),
        pytest.param(pod(uid="theirs"), False, id="of a foreign workload with our name"),
        pytest.param(pod(name="somebodys", uid="x"), False, id="of a workload with another name"),
        pytest.param(pod("Job", "tiny-job", "x"), False, id="of a job"),
        pytest.param({"metadata": {"name": "p"}}, False, id="bare, with our labels"),
    ],
)
def test_a_pod_is_the_models_if_its_workload_made_it(found: dict[str, Any], expected: bool) -> None:
    children = [workload("w", "model"), workload("theirs", "somebody")]
    assert belongs(found, MODEL, children) is expected


@pytest.mark.parametrize(
    ("role", "ready", "metadata", "expected"),
    [
        ("router", "True", {}, True),
        ("router", "False", {}, False),
        ("decode", "True", {}, False),
        ("router", "True", {"deletionTimestamp": "2026-01-01T00:00:00Z"}, False),
    ],
)
def test_only_ready_routers_are_asked(role: str, ready: str, metadata: dict[str, Any], expected: bool) -> None:
    conditions = [{"type": "Ready", "status": ready}]
    found = {"metadata": {"labels": {"kvferry.io/role": role}, **metadata}, "status": {"conditions": conditions}}
    assert is_ready_router(found) is expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"decode": {"rdma": {"mode": "devicePlugin"}}}, True),
        ({"prefill": {"rdma": {"mode": "devicePlugin"}}, "decode": {}}, True),
        ({"decode": {"rdma": {"mode": "none"}}}, False),
        ({"decode": {"rdma": "yes"}}, False),
        ({"decode": 3}, False),
        (None, False),
    ],
)
def test_nodes_are_read_only_for_devices(spec: Any, expected: bool) -> None:
    assert asks_for_devices({"spec": spec}) is expected


def test_a_node_offers_extended_resources_in_whole_numbers() -> None:
    allocatable = {"cpu": "2", "memory": "3Gi", "rdma/hca": "4", "hugepages-2Mi": "0", "odd/thing": "1500m"}
    found = capacity({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}})
    assert dict(found.allocatable) == {"rdma/hca": 4}
