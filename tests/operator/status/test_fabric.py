"""Whether RDMA is really there: on nodes, in pods, and in the sessions between them."""

from __future__ import annotations

from typing import Any

import pytest

from builders import MISSING, raw
from kvferry_operator.observation.observed import NodeCapacity, Nodes
from kvferry_operator.status.fabric import uses_rdma
from model_statuses import condition, kstatus, ready_cluster, status_of, told
from router_reports import report
from simulated_cluster import SimulatedCluster

RDMA = {"mode": "devicePlugin", "resourceName": "rdma/hca"}
ASKED: dict[str, Any] = {"prefill.rdma": RDMA, "decode.rdma": RDMA | {"count": 2}}


def nodes(*amounts: int) -> Nodes:
    return Nodes(tuple(NodeCapacity(f"n{number}", {"rdma/hca": amount}) for number, amount in enumerate(amounts, 1)))


def test_a_model_that_asks_for_no_devices_has_all_it_asked_for() -> None:
    assert told(status_of(SimulatedCluster(raw())), "FabricReady") == ("True", "NotRequested")
    aggregated = raw({"mode": "Aggregated", "prefill": MISSING, "decode.rdma": RDMA})
    assert told(status_of(SimulatedCluster(aggregated)), "FabricReady") == ("True", "NotRequested")


@pytest.mark.parametrize(
    ("amounts", "enough"),
    [((3,), True), ((1, 2), True), ((1, 1, 1), False), ((), False), ((2,), False), ((0, 9), True)],
)
def test_the_devices_of_every_pod_must_find_a_node(amounts: tuple[int, ...], enough: bool) -> None:
    """One pod with one device, one with two."""
    status = status_of(SimulatedCluster(raw(ASKED)), nodes=nodes(*amounts))
    assert (told(status, "FabricReady") != ("False", "NodesLackDevices")) == enough
    assert (kstatus(status) == "Failed") != enough


def test_it_is_said_which_nodes_have_how_many() -> None:
    status = status_of(SimulatedCluster(raw(ASKED)), nodes=nodes(1, 0, *[1] * 20))
    message = condition(status, "FabricReady")["message"]
    assert "3 of rdma/hca are needed for 2 pods" in message and "node n1 has 1" in message
    assert "12 more nodes have 11" in message


def test_a_plugin_that_starts_anew_takes_nothing_from_pods_that_run() -> None:
    cluster = ready_cluster(raw(ASKED))
    found = status_of(cluster, nodes=nodes(0), report=report(cluster, devices=("mlx5_0",), lanes=("rc_mlx5:mlx5_0",)))
    assert told(found, "FabricReady")[1] != "NodesLackDevices"


def test_nodes_that_may_not_be_read_leave_it_open() -> None:
    status = status_of(SimulatedCluster(raw(ASKED)), nodes=Nodes(None, "no right to list nodes"))
    assert told(status, "FabricReady") == ("Unknown", "NodesNotReadable")
    assert "no right to list nodes" in condition(status, "FabricReady")["message"]


CASES: list[tuple[dict[str, Any], tuple[str, str], str]] = [
    ({"memlock_bytes": 8 << 20}, ("False", "MemlockTooLow"), "8Mi"),
    ({"devices": ()}, ("False", "NoDevices"), "dev/infiniband"),
    ({"devices": ("mlx5_0",), "lanes": ("tcp:eth0",)}, ("False", "FellBackToTcp"), "tcp:eth0"),
    ({"devices": ("mlx5_0",), "lanes": ()}, ("Unknown", "Pending"), "no session"),
    ({"devices": ("mlx5_0",), "memlock_bytes": 1 << 40, "lanes": ("rc_mlx5:mlx5_0",)}, ("True", "Ready"), "rc_mlx5"),
]


@pytest.mark.parametrize(("facts", "expected", "word"), CASES)
def test_what_sidecars_see_decides(facts: dict[str, Any], expected: tuple[str, str], word: str) -> None:
    cluster = ready_cluster(raw({"prefill.rdma": RDMA}))
    status = status_of(cluster, nodes=nodes(9), report=report(cluster, **facts))
    assert told(status, "FabricReady") == expected
    assert word in condition(status, "FabricReady")["message"]


@pytest.mark.parametrize(
    ("transfer", "is_ready"),
    [({}, "True"), ({"onFallback": "Fail"}, "False"), ({"transport": "rdma"}, "False")],
)
def test_a_fall_back_keeps_a_model_from_being_ready_only_where_it_says_so(
    transfer: dict[str, Any], is_ready: str
) -> None:
    cluster = ready_cluster(raw({"prefill.rdma": RDMA, "transfer": transfer}))
    status = status_of(cluster, nodes=nodes(9), report=report(cluster, devices=("mlx5_0",), lanes=("tcp:eth0",)))
    assert told(status, "FabricReady") == ("False", "FellBackToTcp") and told(status, "Ready")[0] == is_ready


def test_tcp_that_was_asked_for_is_no_fall_back() -> None:
    cluster = ready_cluster(raw({"prefill.rdma": RDMA, "transfer.transport": "tcp"}))
    status = status_of(cluster, nodes=nodes(9), report=report(cluster, devices=("mlx5_0",), lanes=("tcp:eth0",)))
    assert told(status, "FabricReady")[0] == "True"


@pytest.mark.parametrize(
    ("lanes", "expected"),
    [(("rc_mlx5:mlx5_0",), True), (("tcp:eth0", "dc_mlx5:m"), True), (("tcp:rc0",), False), (("cma:memory",), False)],
)
def test_lanes_over_rdma_are_known_by_their_transport(lanes: tuple[str, ...], expected: bool) -> None:
    assert uses_rdma(lanes) is expected
