from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import builders
from control_plane import ControlPlane
from kvferry_operator.api.parse import parse
from kvferry_operator.desired import owner
from kvferry_operator.desired.build import build
from kvferry_operator.kube.client import connect
from kvferry_operator.reconcile import drift
from rendered import SETTINGS

EXAMPLES = {
    path.stem: next(each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "DisaggregatedModel")
    for path in sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
}

Steps = tuple[str | int, ...]


def everything() -> list[dict[str, Any]]:
    """All objects of a model that uses most features."""
    changes = {
        "prefill.parallelism.pipeline": 2,
        "decode.template": {
            "spec": {
                "nodeSelector": {"pool": "gpu"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "containers": [{"name": "engine", "resources": {"limits": {"cpu": "0.5", "memory": "1.5Gi"}}}],
            }
        },
    }
    return list(build(builders.model(changes), SETTINGS))


OBJECTS = everything()


def leaves(value: Any, path: Steps = ()) -> Iterator[Steps]:
    """Paths of all values that are neither maps nor lists, in a manifest, without its identity."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if path or key not in ("apiVersion", "kind"):
                yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path


def parent(manifest: Any, path: Steps) -> Any:
    for step in path[:-1]:
        manifest = manifest[step]
    return manifest


LEAVES = [(number, path) for number, each in enumerate(OBJECTS) for path in leaves(each)]


def first(desired: dict[str, Any], live: dict[str, Any]) -> str:
    return next(drift.differences(desired, live), "")


def pod_spec(**spec: Any) -> dict[str, Any]:
    """A workload with one container, or the given parts of a pod."""
    pod = {"containers": [{"name": "c", "image": "i"}], **spec}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}, "spec": {"template": template}}


def container(**fields: Any) -> dict[str, Any]:
    return pod_spec(containers=[{"name": "c", **fields}])


def policy(**spec: Any) -> dict[str, Any]:
    return {"kind": "NetworkPolicy", "metadata": {"name": "p"}, "spec": {"podSelector": {}, **spec}}


def service(**spec: Any) -> dict[str, Any]:
    return {"kind": "Service", "metadata": {"name": "s"}, "spec": spec}


@pytest.mark.parametrize("manifest", OBJECTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_an_object_does_not_differ_from_itself(manifest: dict[str, Any]) -> None:
    assert first(manifest, copy.deepcopy(manifest)) == ""


def test_every_changed_leaf_is_found() -> None:
    for number, path in LEAVES:
        live = copy.deepcopy(OBJECTS[number])
        place = parent(live, path)
        old = place[path[-1]]
        place[path[-1]] = (not old) if isinstance(old, bool) else old + 1 if isinstance(old, int) else f"{old}7"
        assert first(OBJECTS[number], live) != "", path


def test_every_removed_leaf_is_found() -> None:
    for number, path in LEAVES:
        live = copy.deepcopy(OBJECTS[number])
        removed = parent(live, path).pop(path[-1])
        is_default = (path[-1], removed) in (("readOnly", False), ("protocol", "TCP"))
        assert first(OBJECTS[number], live) != "" or is_default, path


@given(st.sampled_from(OBJECTS), st.data())
def test_additions_of_others_are_no_drift(manifest: dict[str, Any], data: st.DataObject) -> None:
    live = copy.deepcopy(manifest)
    rules = manifest["kind"] in ("NetworkPolicy", "Role", "RoleBinding")
    _add_fields(live, lambda: data.draw(st.booleans()), rules=rules)
    assert first(manifest, live) == ""


def _add_fields(value: Any, wanted: Callable[[], bool], *, rules: bool, key: str = "") -> None:
    """Add a field to maps that may have more, and an item to lists that may, as defaulting and injectors do."""
    if isinstance(value, dict):
        closed = key in ("selector", "podSelector", "namespaceSelector", "labelSelector", "nodeSelector")
        for name, item in value.items():
            if not closed:
                _add_fields(item, wanted, rules=rules, key=name)
        if not closed and wanted():
            value["added"] = "by another"
    elif isinstance(value, list) and not (rules and key != "ownerReferences"):
        for item in value:
            _add_fields(item, wanted, rules=rules)
        if key in ("containers", "initContainers", "env", "volumes") and wanted():
            value.insert(0, {"name": "added", "image": "by another"})


@pytest.mark.parametrize(
    ("desired", "live"),
    [
        (container(resources={"limits": {"cpu": "0.5"}}), container(resources={"limits": {"cpu": "500m"}})),
        (container(resources={"limits": {"cpu": 0.5}}), container(resources={"limits": {"cpu": "500m"}})),
        (container(resources={"limits": {"cpu": 2}}), container(resources={"limits": {"cpu": "2"}})),
        (container(resources={"limits": {"memory": "1.5Gi"}}), container(resources={"limits": {"memory": "1536Mi"}})),
        (container(resources={"requests": {}}), container(resources={})),
        (container(env=[{"name": "A", "value": ""}]), container(env=[{"name": "A"}])),
        (container(ports=[{"containerPort": 1}]), container(ports=[{"containerPort": 1, "protocol": "TCP"}])),
        (container(ports=[{"containerPort": 1, "hostPort": 0}]), container(ports=[{"containerPort": 1}])),
        (container(tty=False, args=[]), container()),
        (container(image=None), container(image="i")),
        (pod_spec(hostNetwork=False, nodeSelector={}, tolerations=[]), pod_spec()),
        (
            pod_spec(volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1024Mi"}}]),
            pod_spec(volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]),
        ),
        (policy(ingress=[]), policy()),
        (policy(ingress=[{"ports": [{"port": 1}]}]), policy(ingress=[{"ports": [{"port": 1, "protocol": "TCP"}]}])),
        (
            service(ports=[{"port": 80}, {"port": 81}]),
            service(ports=[{"port": 80, "protocol": "TCP", "targetPort": 80}, {"port": 81, "protocol": "TCP"}]),
        ),
    ],
)
def test_what_the_server_writes_in_its_own_way_is_the_same(desired: dict[str, Any], live: dict[str, Any]) -> None:
    assert list(drift.differences(desired, live)) == []


@pytest.mark.parametrize(
    ("desired", "live", "path"),
    [
        (container(image="a"), container(image="b"), "spec.template.spec.containers[c].image"),
        (
            container(env=[{"name": "A", "value": "1"}]),
            container(env=[{"name": "B", "value": "1"}]),
            "spec.template.spec.containers[c].env[A]",
        ),
        (
            container(env=[{"name": "A"}, {"name": "B"}]),
            container(env=[{"name": "B"}, {"name": "A"}]),
            "spec.template.spec.containers[c].env",
        ),
        (
            pod_spec(initContainers=[{"name": "a"}, {"name": "b"}]),
            pod_spec(initContainers=[{"name": "b"}, {"name": "injected"}, {"name": "a"}]),
            "spec.template.spec.initContainers",
        ),
        (container(args=["a", "b"]), container(args=["b", "a"]), "spec.template.spec.containers[c].args[0]"),
        (container(args=["a"]), container(args=["a", "b"]), "spec.template.spec.containers[c].args"),
        (
            container(resources={"limits": {"rdma/hca": "1"}}),
            container(resources={"limits": {"rdma/hca": "2"}}),
            "spec.template.spec.containers[c].resources.limits.rdma/hca",
        ),
        (
            container(readinessProbe={"httpGet": {"port": 8080}}),
            container(readinessProbe={"httpGet": {"port": "8080"}}),
            "spec.template.spec.containers[c].readinessProbe.httpGet.port",
        ),
        (
            pod_spec(automountServiceAccountToken=False),
            pod_spec(),
            "spec.template.spec.automountServiceAccountToken",
        ),
        (
            container(securityContext={"allowPrivilegeEscalation": False}),
            container(securityContext={"allowPrivilegeEscalation": 0}),
            "spec.template.spec.containers[c].securityContext.allowPrivilegeEscalation",
        ),
        (
            pod_spec(volumes=[{"name": "v", "emptyDir": {}}]),
            pod_spec(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
            "spec.template.spec.volumes[v].emptyDir",
        ),
        (
            pod_spec(nodeSelector={"a": "b"}),
            pod_spec(nodeSelector={"a": "b", "c": "d"}),
            "spec.template.spec.nodeSelector.c",
        ),
        (service(selector={"a": "b"}), service(selector={"a": "b", "c": "d"}), "spec.selector.c"),
        (service(ports=[{"port": 80}]), service(ports=[{"port": 80, "protocol": "UDP"}]), "spec.ports[80]"),
        (policy(), policy(podSelector={"matchLabels": {"a": "b"}}), "spec.podSelector.matchLabels"),
        (policy(ingress=[]), policy(ingress=[{}]), "spec.ingress"),
        (
            policy(ingress=[{"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]}]),
            policy(ingress=[{}]),
            "spec.ingress[0].from",
        ),
        (
            policy(ingress=[{"ports": [{"port": 80}]}]),
            policy(ingress=[{"ports": [{"port": 80}, {"port": 22}]}]),
            "spec.ingress[0].ports",
        ),
        (
            policy(ingress=[{"from": [{"podSelector": {}}]}]),
            policy(ingress=[{"from": [{"podSelector": {}, "namespaceSelector": {"matchLabels": {"a": "b"}}}]}]),
            "spec.ingress[0].from[0].namespaceSelector",
        ),
        (
            {"kind": "ConfigMap", "metadata": {"name": "c", "labels": {"env": "1"}}, "data": {"limits": "1"}},
            {"kind": "ConfigMap", "metadata": {"name": "c", "labels": {"env": ""}}, "data": {"limits": "1.0"}},
            "metadata.labels.env",
        ),
        (
            {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"limits": "1", "empty": ""}},
            {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"limits": "1.0"}},
            "data.limits",
        ),
    ],
)
def test_the_first_difference_is_named(desired: dict[str, Any], live: dict[str, Any], path: str) -> None:
    assert first(desired, live) == path


def test_all_differences_can_be_had() -> None:
    desired = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1", "b": ""}}
    live = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "2"}}
    assert list(drift.differences(desired, live)) == ["data.a", "data.b"]


def test_the_hash_is_of_the_content_and_not_of_its_order() -> None:
    forth = {"kind": "X", "metadata": {"name": "c", "annotations": {"a": "1"}}, "data": {"a": "1", "b": "2"}}
    back = {"data": {"b": "2", "a": "1"}, "metadata": {"annotations": {"a": "1"}, "name": "c"}, "kind": "X"}
    assert drift.applied_hash(forth) == drift.applied_hash(back)
    assert drift.applied_hash(forth) != drift.applied_hash({**forth, "data": {"a": "1"}})


def test_the_stamp_is_the_hash_of_what_is_stamped_and_changes_nothing_else() -> None:
    manifest = {"kind": "X", "metadata": {"name": "c", "annotations": {"a": "1"}}}
    stamped = drift.stamped(manifest)
    assert stamped["metadata"]["annotations"] == {"a": "1", drift.ANNOTATION: drift.applied_hash(manifest)}
    assert drift.ANNOTATION not in manifest["metadata"]["annotations"]
    assert drift.stamped({"kind": "X", "metadata": {"name": "c"}})["metadata"]["annotations"].keys() == {
        drift.ANNOTATION
    }


@pytest.mark.parametrize("example", EXAMPLES)
async def test_what_a_real_server_stores_of_our_objects_is_no_drift(control_plane: ControlPlane, example: str) -> None:
    raw = copy.deepcopy(EXAMPLES[example])
    raw["metadata"]["namespace"] = control_plane.namespace("drift")
    async with connect(control_plane.kubeconfig) as cluster:
        model = parse(await cluster.apply(raw))
        for manifest in owner.owned(build(model, SETTINGS), model):
            stored = await cluster.apply(drift.stamped(manifest))
            assert list(drift.differences(manifest, stored)) == [], manifest["kind"]
            assert stored["metadata"]["annotations"][drift.ANNOTATION] == drift.applied_hash(manifest)
