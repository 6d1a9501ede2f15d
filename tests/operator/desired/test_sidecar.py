"""The runtime sidecar: native where the server knows it, once, and without undoing what a pod already has."""

from __future__ import annotations

from typing import Any

import pytest

import builders
import rendered
from kvferry_contract.config import Role
from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.desired import pod, sidecar
from kvferry_operator.desired.settings import Settings
from kvferry_operator.desired.stage import Stage

RDMA = {"mode": "devicePlugin", "resourceName": "rdma/hca", "count": 2}


def stage_of(model: DisaggregatedModel) -> Stage:
    return Stage(model, Role.DECODE, model.spec.decode, 0, "0123abcd", rendered.SETTINGS)


@pytest.mark.parametrize("server", [(1, 29), (1, 34)])
def test_it_is_native_where_the_server_knows_that(server: tuple[int, int]) -> None:
    """Case 16."""
    spec = rendered.pod(builders.model(), settings=Settings(server=server))["spec"]
    (container,) = (item for item in spec["initContainers"] if item["name"] == "kvferry-sidecar")
    assert container["restartPolicy"] == "Always" and "startupProbe" in container
    assert [item["name"] for item in spec["containers"]] == ["engine"]
    assert "restartPolicy" not in spec["containers"][0]


def test_it_is_an_ordinary_container_on_older_servers() -> None:
    """Case 16."""
    spec = rendered.pod(builders.model(), settings=Settings(server=(1, 28)))["spec"]
    assert [item["name"] for item in spec["containers"]] == ["engine", "kvferry-sidecar"]
    assert "initContainers" not in spec
    assert not [item for item in spec["containers"] if "restartPolicy" in item]


def test_injecting_twice_changes_nothing() -> None:
    """Case 17."""
    stage = stage_of(builders.model())
    once = sidecar.inject(pod.template(stage, "config"), stage)
    assert sidecar.inject(once, stage) == once


def test_what_others_put_into_the_pod_stays() -> None:
    """Case 17."""
    stage = stage_of(builders.model())
    template = pod.template(stage, "config")
    foreign = {"name": "mesh", "image": "mesh:1"}
    template["spec"]["containers"].append(foreign)
    template["spec"]["initContainers"].append({"name": "kvferry-sidecar", "securityContext": {"runAsUser": 7}})
    injected = sidecar.inject(template, stage)
    assert foreign in injected["spec"]["containers"]
    (container,) = (item for item in injected["spec"]["initContainers"] if item["name"] == "kvferry-sidecar")
    assert container["securityContext"]["runAsUser"] == 7
    assert container["command"] == ["kvferry-runtime", "sidecar"]
    assert sidecar.inject(injected, stage) == injected


def test_engine_and_sidecar_share_the_ring_in_memory() -> None:
    template = rendered.pod(builders.model({"transfer.bufferBytes": "64Mi"}))
    (volume,) = (item for item in template["spec"]["volumes"] if item["name"] == "kvferry-ring")
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "65Mi"}
    for name in ("engine", "kvferry-sidecar"):
        container = rendered.containers(template)[name]
        assert {"name": "kvferry-ring", "mountPath": "/run/kvferry"} in container["volumeMounts"]


@pytest.mark.parametrize("buffer", ["16Mi", "64Mi", "100M", "1Gi"])
def test_the_ring_fits_its_volume(buffer: str) -> None:
    transfer = builders.model({"transfer.bufferBytes": buffer}).spec.transfer
    assert sidecar.ring_bytes(transfer) > transfer.buffer_bytes


def test_only_the_sidecar_sees_the_shared_key() -> None:
    parts = rendered.containers(rendered.pod(builders.model()))
    assert [name for name, part in parts.items() if "kvferry-key" in str(part["volumeMounts"])] == ["kvferry-sidecar"]


def test_rdma_goes_to_the_sidecar_alone() -> None:
    # request and limit alike, only where data is moved
    parts = rendered.containers(rendered.pod(builders.model({"decode.rdma": RDMA})))
    resources = parts["kvferry-sidecar"]["resources"]
    assert resources["requests"]["rdma/hca"] == resources["limits"]["rdma/hca"] == "2"
    assert parts["kvferry-sidecar"]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert "rdma/hca" not in str(parts["engine"])
    assert parts["engine"]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_sidecars_own_resources_are_kept_beside_devices() -> None:
    changes = {
        "decode.rdma": RDMA,
        "sidecar.resources": {"requests": {"memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
    }
    container = rendered.containers(rendered.pod(builders.model(changes)))["kvferry-sidecar"]
    assert container["resources"] == {
        "requests": {"memory": "1Gi", "rdma/hca": "2"},
        "limits": {"cpu": "2", "memory": "2Gi", "rdma/hca": "2"},
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"transfer.transport": "rdma"}, {}),
        (
            {"transfer.ucx": {"tls": "rc,tcp", "netDevices": "mlx5_0:1"}},
            {"UCX_TLS": "rc,tcp", "UCX_NET_DEVICES": "mlx5_0:1"},
        ),
        ({"transfer.ucx": {"tls": "rc", "env": [{"name": "UCX_TLS", "value": "ud"}]}}, {"UCX_TLS": "ud"}),
        (
            {"transfer.ucx.env": [{"name": "UCX_A", "value": "1"}], "sidecar.env": [{"name": "UCX_A", "value": "2"}]},
            {"UCX_A": "2"},
        ),
    ],
)
def test_ucx_is_told_only_what_the_user_says(changes: dict[str, Any], expected: dict[str, str]) -> None:
    container = rendered.containers(rendered.pod(builders.model(changes)))["kvferry-sidecar"]
    found = {name: value for name, value in rendered.env(container).items() if name.startswith("UCX_")}
    assert found == expected
    assert len({item["name"] for item in container["env"]}) == len(container["env"])
