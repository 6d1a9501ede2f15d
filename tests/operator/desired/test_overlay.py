"""The user's template reaches the pod, and cannot break what makes the pod one of ours."""

from __future__ import annotations

from typing import Any

import pytest

import builders
import rendered
from kvferry_operator.desired import overlay
from kvferry_operator.desired.build import build
from kvferry_operator.errors import SpecInvalid

RDMA = {"mode": "devicePlugin", "resourceName": "rdma/hca", "count": 1}


def laid_on(template: dict[str, Any], changes: dict[str, Any] | None = None) -> dict[str, Any]:
    return rendered.pod(builders.model({**(changes or {}), "decode.template": template}))


def engine(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


def test_a_small_override_leaves_the_rest() -> None:
    """Case 18."""
    before = rendered.containers(rendered.pod(builders.model()))["engine"]
    merged = laid_on(engine(image="mine:1", env=[{"name": "FOO", "value": "1"}]))
    after = rendered.containers(merged)["engine"]
    assert after["image"] == "mine:1"
    assert after["env"] == [*before["env"], {"name": "FOO", "value": "1"}]
    kept = ("command", "ports", "startupProbe", "readinessProbe", "volumeMounts", "securityContext", "lifecycle")
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}


def test_a_further_volume_is_added_beside_ours() -> None:
    """Case 18."""
    before = [item["name"] for item in rendered.pod(builders.model())["spec"]["volumes"]]
    merged = laid_on({"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}})
    assert [item["name"] for item in merged["spec"]["volumes"]] == [*before, "data"]


def test_other_containers_tolerations_labels_and_annotations_pass_through() -> None:
    template = {
        "metadata": {"labels": {"env": "prod"}, "annotations": {"note": "x"}},
        "spec": {
            "containers": [{"name": "logger", "image": "l:1"}],
            "initContainers": [{"name": "wait", "image": "w:1"}],
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"gpu": "yes"},
            "priorityClassName": "high",
        },
    }
    merged = laid_on(template)
    assert merged["metadata"]["labels"]["env"] == "prod" and merged["metadata"]["annotations"]["note"] == "x"
    assert [item["name"] for item in merged["spec"]["containers"]] == ["engine", "logger"]
    # the user's own init containers run first: the sidecar must be up right before the engine
    assert [item["name"] for item in merged["spec"]["initContainers"]] == ["wait", "kvferry-sidecar"]
    assert merged["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert merged["spec"]["priorityClassName"] == "high"


def test_the_users_security_context_of_the_sidecar_is_kept() -> None:
    template = {"spec": {"initContainers": [{"name": "kvferry-sidecar", "securityContext": {"runAsUser": 0}}]}}
    security = rendered.containers(laid_on(template))["kvferry-sidecar"]["securityContext"]
    assert security["runAsUser"] == 0 and security["readOnlyRootFilesystem"] is True


def test_the_users_affinity_and_spread_win() -> None:
    spread = [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]
    own = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}, "nodeAffinity": {"x": 1}}
    merged = laid_on(
        {"spec": {"affinity": own, "topologySpreadConstraints": spread}}, {"placement.policy": "Preferred"}
    )
    assert merged["spec"]["affinity"] == own
    assert merged["spec"]["topologySpreadConstraints"] == spread


def test_networks_of_both_are_joined() -> None:
    template = {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "storage, ib0"}}}
    merged = laid_on(template, {"decode.rdma": {**RDMA, "networks": ["ib0", "ib1"]}})
    assert merged["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "ib0,ib1,storage"


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"status": {}}, "status"),
        ({"metadata": {"name": "x"}}, "metadata.name"),
        ({"metadata": {"labels": {"kvferry.io/role": "prefill"}}}, "metadata.labels[kvferry.io/role]"),
        ({"metadata": {"labels": {"kvferry.io/mine": "x"}}}, "metadata.labels[kvferry.io/mine]"),
        ({"metadata": {"labels": {"kvferry.io/role": None}}}, "metadata.labels[kvferry.io/role]"),
        ({"metadata": {"labels": {"n": 1}}}, "metadata.labels[n]"),
        ({"spec": {"restartPolicy": "Never"}}, "spec.restartPolicy"),
        ({"spec": {"terminationGracePeriodSeconds": 30}}, "spec.terminationGracePeriodSeconds"),
        ({"spec": {"containers": None}}, "spec.containers[engine]"),
        ({"spec": {"containers": [{"name": "kvferry-sidecar"}]}}, "spec.containers[kvferry-sidecar]"),
        ({"spec": {"initContainers": [{"name": "engine"}]}}, "spec.initContainers[engine]"),
        ({"spec": {"volumes": [{"name": "kvferry-ring", "emptyDir": {}}]}}, "spec.volumes[kvferry-ring]"),
        (engine(env=[{"name": "KVFERRY_ROLE", "value": "x"}]), "spec.containers[engine].env[KVFERRY_ROLE]"),
        (engine(env=[{"name": "KVFERRY_NEW", "value": "x"}]), "spec.containers[engine].env[KVFERRY_NEW]"),
        (engine(env=None), "spec.containers[engine].env[KVFERRY_CONFIG]"),
        (engine(env=[{"name": "N", "value": 1}]), "spec.containers[engine].env[N].value"),
        (
            engine(volumeMounts=[{"name": "x", "mountPath": "/run/kvferry"}]),
            "spec.containers[engine].volumeMounts[/run/kvferry]",
        ),
        (engine(ports=[{"name": "http", "containerPort": 9}]), "spec.containers[engine].ports"),
        (
            {"spec": {"initContainers": [{"name": "kvferry-sidecar", "command": ["sh"]}]}},
            "spec.initContainers[kvferry-sidecar].command",
        ),
        (
            engine(resources={"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}}),
            "spec.containers[engine].resources.requests.nvidia.com/gpu",
        ),
        (
            engine(resources={"limits": {"nvidia.com/gpu": "0.5"}}),
            "spec.containers[engine].resources.limits.nvidia.com/gpu",
        ),
    ],
)
def test_a_clash_is_an_error_with_its_path(template: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        laid_on(template)
    assert f"spec.decode.template.{path}" in [error.path for error in caught.value.errors]


@pytest.mark.parametrize(
    ("container", "count", "accepted"),
    [("kvferry-sidecar", 1, True), ("kvferry-sidecar", 2, False), ("engine", 1, False)],
)
def test_devices_are_not_asked_for_twice(container: str, count: int, accepted: bool) -> None:
    """Case 15."""
    resources = {"limits": {"cpu": "2", "memory": "100Mi", "rdma/hca": str(count)}}
    kind = "initContainers" if container == "kvferry-sidecar" else "containers"
    template = {"spec": {kind: [{"name": container, "resources": resources}]}}
    if not accepted:
        with pytest.raises(SpecInvalid, match="rdma/hca"):
            laid_on(template, {"decode.rdma": RDMA})
        return
    found = rendered.containers(laid_on(template, {"decode.rdma": RDMA}))[container]["resources"]
    assert found["limits"] == {"rdma/hca": "1", "cpu": "2", "memory": "100Mi"}
    assert found["requests"]["rdma/hca"] == "1"


def test_devices_in_the_typed_resources_are_not_asked_for_twice() -> None:
    model = builders.model({"decode.rdma": RDMA, "decode.resources.limits": {"rdma/hca": 1}})
    with pytest.raises(SpecInvalid, match=r"spec\.decode\.resources\.limits\.rdma/hca: goes to the sidecar alone"):
        build(model, rendered.SETTINGS)


def test_laying_the_same_template_on_twice_changes_nothing() -> None:
    template = {
        "metadata": {"labels": {"env": "prod"}},
        "spec": {
            "containers": [{"name": "engine", "image": "x:1", "env": [{"name": "A", "value": "1"}]}, {"name": "b"}],
            "initContainers": [{"name": "wait"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
    }
    once = laid_on(template)
    twice, errors = overlay.apply(once, template, "t", overlay.Guard(least_grace=0))
    assert (twice, errors) == (once, ())


def test_the_router_takes_a_template_too() -> None:
    template = {"spec": {"containers": [{"name": "router", "env": [{"name": "A", "value": "1"}]}]}}
    (deployment,) = rendered.of_kind(
        build(builders.model({"router.template": template}), rendered.SETTINGS), "Deployment"
    )
    container = rendered.containers(deployment["spec"]["template"])["router"]
    assert rendered.env(container)["A"] == "1" and container["command"] == ["kvferry-runtime", "router"]
