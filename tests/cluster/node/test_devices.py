"""RDMA devices as a model's sidecar asks for them, offered by a device plugin to a real kubelet."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import rendered
from cluster_node import devices
from cluster_node.cluster import RealCluster
from device_plugin import plugin
from eventually import eventually
from kvferry_operator.api import names
from kvferry_operator.api.parse import parse
from kvferry_operator.desired import security
from node_pods import Pods, container

pytestmark = pytest.mark.slow

RESOURCE = "rdma/hca"
COUNT = 3
EXAMPLE = Path(__file__).parents[3] / "examples" / "rdma.yaml"
_IPC_LOCK = 14
"""Its number in capability(7)."""


@pytest.fixture(scope="module", autouse=True)
def offered(real_cluster: RealCluster) -> None:
    devices.offer(real_cluster.node.machine, RESOURCE, COUNT)
    eventually(lambda: _allocatable(real_cluster) == COUNT, f"the node offers {COUNT} {RESOURCE}")


def _allocatable(real_cluster: RealCluster) -> int:
    return int(real_cluster.node.object()["status"]["allocatable"].get(RESOURCE, "0"))


def _create(pods: Pods, name: str, count: int) -> None:
    """A pod whose sidecar asks of the node what the example's does, with another count of devices."""
    example = yaml.safe_load(EXAMPLE.read_text())
    for role in ("prefill", "decode"):
        example["spec"][role]["rdma"]["count"] = count
    rendered_sidecar = rendered.containers(rendered.pod(parse(example)))[names.CONTAINER_SIDECAR]
    asked = {key: rendered_sidecar[key] for key in ("resources", "securityContext")}
    sidecar = container("sidecar", restartPolicy="Always", **asked)
    pods.create(name, container("main"), initContainers=[sidecar], **security.pod_spec())


def _devices(pods: Pods, name: str) -> set[str]:
    """The devices that the pod's sidecar was given."""
    return set(pods.ran(name, f"import os; print(os.environ['{plugin.DEVICES}'])", "sidecar").strip().split(","))


def test_a_sidecar_gets_devices_of_its_own_and_may_lock_memory(pods: Pods) -> None:
    _create(pods, "one", count=1)
    _create(pods, "two", count=2)
    for name in ("one", "two"):
        pods.wait_until_ready(name)
    assert (len(_devices(pods, "one")), len(_devices(pods, "two"))) == (1, 2)
    assert not _devices(pods, "one") & _devices(pods, "two")
    status = pods.ran("one", "print(open('/proc/self/status').read())", "sidecar")
    (bounding,) = (line.split()[1] for line in status.splitlines() if line.startswith("CapBnd:"))
    assert int(bounding, 16) == 1 << _IPC_LOCK


def test_a_pod_that_asks_for_more_than_there_is_says_so(pods: Pods) -> None:
    _create(pods, "greedy", count=COUNT + 1)
    eventually(lambda: pods.condition("greedy", "PodScheduled"), "the scheduler has spoken")
    scheduled = pods.condition("greedy", "PodScheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    assert f"1 Insufficient {RESOURCE}" in scheduled["message"]
    assert pods.get("greedy")["status"]["phase"] == "Pending"


def test_devices_and_pods_survive_a_restart_of_the_kubelet(pods: Pods, real_cluster: RealCluster) -> None:
    _create(pods, "stays", count=1)
    pods.wait_until_ready("stays")
    before = _devices(pods, "stays")
    told = devices.told(real_cluster.node.machine, RESOURCE)
    real_cluster.node.restart_kubelet()
    # the node's object shows the devices all the time
    eventually(lambda: devices.told(real_cluster.node.machine, RESOURCE) > told, "the plugin has registered again")
    _create(pods, "later", count=1)
    pods.wait_until_ready("later")
    assert _devices(pods, "stays") == before
    assert not _devices(pods, "later") & before
    assert pods.get("stays")["status"]["initContainerStatuses"][0]["restartCount"] == 0
