"""Every call against a real API server."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

import builders
from control_plane import ControlPlane
from eventually import eventually_async
from kvferry_operator.errors import Conflict, Forbidden, Refused, Unreachable
from kvferry_operator.kube import client, kinds
from kvferry_operator.kube.client import Cluster, connect
from kvferry_operator.kube.kinds import Kind

CONFIG_MAP = next(kind for kind in kinds.CHILDREN if kind.kind == "ConfigMap")
UNKNOWN = Kind("nobody.example/v1", "Nothing", "nothings")


def config_map(namespace: str, name: str = "c", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {"test": "yes"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def stateful_set(namespace: str, container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    labels = {"test": "yes"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i", **(container or {})}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "s", "namespace": namespace},
        "spec": {"serviceName": "s", "replicas": 0, "selector": {"matchLabels": labels}, "template": template, **spec},
    }


async def test_applying_sets_drops_and_takes_over(
    cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps/c"
    control_plane.api.apply(path, config_map(namespace, mine="no", theirs="yes"), manager="somebody")
    first = await cluster.apply(config_map(namespace, mine="yes", old="yes"))
    assert first["data"] == {"mine": "yes", "old": "yes", "theirs": "yes"}
    second = await cluster.apply(config_map(namespace, mine="yes"))
    assert second["data"] == {"mine": "yes", "theirs": "yes"}
    again = await cluster.apply(config_map(namespace, mine="yes"))
    assert again["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"bogus": 1}, r"\.spec\.bogus"),
        ({"replicas": "three"}, r"\.spec\.replicas"),
        ({"container": {"env": [{"name": "A"}, {"name": "A"}]}}, "duplicate entries"),
        ({"serviceName": "another"}, "Forbidden: updates to statefulset spec"),
        ({"container": {"image": ""}}, "image: Required value"),
    ],
)
async def test_what_will_never_be_taken_is_refused(
    cluster: Cluster, namespace: str, broken: dict[str, Any], says: str
) -> None:
    await cluster.apply(stateful_set(namespace))
    with pytest.raises(Refused, match=rf"apply StatefulSet {namespace}/s: .*{says}"):
        await cluster.apply(stateful_set(namespace, **broken))


async def test_creating_leaves_what_is_there(cluster: Cluster, namespace: str) -> None:
    assert await cluster.create(config_map(namespace, first="yes"))
    assert not await cluster.create(config_map(namespace, second="yes"))
    found = await cluster.get(CONFIG_MAP, namespace, "c")
    assert found is not None
    assert found["data"] == {"first": "yes"}


async def test_deleting_hits_one_object_and_no_later_one_of_its_name(cluster: Cluster, namespace: str) -> None:
    first = await cluster.apply(config_map(namespace))
    await cluster.delete(CONFIG_MAP, namespace, "c", first["metadata"]["uid"])
    await cluster.delete(CONFIG_MAP, namespace, "c", first["metadata"]["uid"])
    assert await cluster.get(CONFIG_MAP, namespace, "c") is None
    await cluster.apply(config_map(namespace))
    with pytest.raises(Conflict, match=rf"delete ConfigMap {namespace}/c: .*UID"):
        await cluster.delete(CONFIG_MAP, namespace, "c", first["metadata"]["uid"])


async def test_replacing_needs_the_latest_version(cluster: Cluster, namespace: str) -> None:
    first = await cluster.apply(config_map(namespace, a="1"))
    second = await cluster.replace({**first, "data": {"a": "2"}})
    assert second["data"] == {"a": "2"}
    with pytest.raises(Conflict, match="update ConfigMap"):
        await cluster.replace({**first, "data": {"a": "3"}})


async def test_scaling_changes_replicas_alone(cluster: Cluster, namespace: str) -> None:
    before = await cluster.apply(stateful_set(namespace))
    await cluster.scale(namespace, "s", 2)
    after = await cluster.get(kinds.STATEFUL_SET, namespace, "s")
    assert after is not None
    assert after["spec"] == {**before["spec"], "replicas": 2}
    with pytest.raises(Conflict, match="gone"):
        await cluster.scale(namespace, "another", 2)


async def test_lists_come_whole_in_pages_and_say_what_their_items_are(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAGE_SIZE", 2)
    for number in range(5):
        await cluster.apply(config_map(namespace, f"c{number}"))
    found = await cluster.list(CONFIG_MAP, namespace, "test=yes")
    assert [item["metadata"]["name"] for item in found] == ["c0", "c1", "c2", "c3", "c4"]
    assert {(item["apiVersion"], item["kind"]) for item in found} == {("v1", "ConfigMap")}
    everywhere = await cluster.list(CONFIG_MAP, None, "test=yes")
    assert {item["metadata"]["uid"] for item in found} <= {item["metadata"]["uid"] for item in everywhere}
    assert await cluster.list(CONFIG_MAP, namespace, "test=no") == []


async def test_status_is_written_under_a_manager_of_its_own(cluster: Cluster, namespace: str) -> None:
    model = builders.raw()
    model["metadata"]["namespace"] = namespace
    assert await cluster.create(model)
    identity = {key: model[key] for key in ("apiVersion", "kind")} | {
        "metadata": {"name": "tiny", "namespace": namespace}
    }
    written = await cluster.apply({**identity, "status": {"observedGeneration": 1}}, "status", "another-manager")
    assert written["status"] == {"observedGeneration": 1}
    assert written["spec"]["engine"]["type"] == "reference"
    assert "another-manager" in {entry["manager"] for entry in written["metadata"]["managedFields"]}
    missing = {**identity, "metadata": {"name": "gone", "namespace": namespace}, "status": {"observedGeneration": 1}}
    with pytest.raises(Conflict, match=rf"apply DisaggregatedModel/status {namespace}/gone: it is gone"):
        await cluster.apply(missing, "status")


async def test_a_kind_that_is_not_served_is_not_taken_for_an_object_that_is_not_there(cluster: Cluster) -> None:
    for attempt in (cluster.get(UNKNOWN, "default", "x"), cluster.list(UNKNOWN, None)):
        with pytest.raises(Refused, match=r"serves no nothings of nobody\.example/v1"):
            await attempt


async def test_a_namespace_that_goes_away_is_no_missing_permission(
    cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    held = config_map(namespace)
    held["metadata"]["finalizers"] = ["test.example/held"]
    made = await cluster.apply(held)
    control_plane.api.delete(f"/api/v1/namespaces/{namespace}")
    with pytest.raises(Refused, match="being terminated"):
        await cluster.apply(config_map(namespace, "late"))
    await cluster.replace({**made, "metadata": {"name": "c", "namespace": namespace}})


async def test_missing_permissions_are_named_as_rules(control_plane: ControlPlane, namespace: str) -> None:
    async with connect(control_plane.service_account_kubeconfig(namespace, "weak")) as weak:
        status = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s", "namespace": namespace}}
        for attempt, group, resource, verb, where in (
            (weak.list(kinds.NODE, None), "", "nodes", "list", "in the whole cluster"),
            (weak.apply(config_map(namespace)), "", "configmaps", "patch", f"in namespace {namespace}"),
            (weak.apply(status, "status"), "apps", "statefulsets/status", "patch", f"in namespace {namespace}"),
            (weak.scale(namespace, "s", 1), "apps", "statefulsets/scale", "patch", f"in namespace {namespace}"),
            (weak.ask_pod(namespace, "p", 8080, "/", 10), "", "pods/proxy", "get", f"in namespace {namespace}"),
        ):
            with pytest.raises(Forbidden) as caught:
                await attempt
            rule = f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]}} {where}'
            assert f"system:serviceaccount:{namespace}:weak lacks the rule {rule}" in str(caught.value)


async def test_a_right_that_is_handed_on_must_be_held(control_plane: ControlPlane, namespace: str) -> None:
    base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rule = {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["create", "patch"]}
    subject = {"kind": "ServiceAccount", "name": "giver", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "giver"}
    control_plane.api.create(f"{base}/roles", {"metadata": {"name": "giver"}, "rules": [rule]})
    control_plane.api.create(
        f"{base}/rolebindings", {"metadata": {"name": "giver"}, "roleRef": reference, "subjects": [subject]}
    )
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "given", "namespace": namespace},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}],
    }
    async with connect(control_plane.service_account_kubeconfig(namespace, "giver")) as giver:

        async def refusal() -> str:
            with pytest.raises(Forbidden) as caught:
                await giver.apply(role)
            # the grant itself takes a moment to be known
            return "" if "lacks the rule" in str(caught.value) else str(caught.value)

        assert "must hold every right that it hands on" in await eventually_async(refusal, "roles may be applied")


async def test_a_pod_that_is_not_there_does_not_answer(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Unreachable, match=rf"get Pod/proxy {namespace}/nobody:8080: "):
        await cluster.ask_pod(namespace, "nobody", 8080, "/v1/pairs", 1000)


async def test_version_and_schema_of_the_server(cluster: Cluster) -> None:
    assert await cluster.server_version() >= (1, 29)
    schema = await cluster.model_schema()
    assert schema is not None
    assert "transfer" in schema["properties"]["spec"]["properties"]


async def test_warnings_of_the_server_are_logged(
    cluster: Cluster, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    risky = stateful_set(namespace, container={"resources": {"limits": {"memory": "400m"}}})
    with caplog.at_level(logging.WARNING):
        await cluster.apply(risky)
    assert "fractional byte value" in caplog.text


@pytest.mark.parametrize("way", ["token file", "plugin"])
async def test_credentials_that_were_replaced_are_read_again(
    control_plane: ControlPlane, tmp_path: Path, way: str
) -> None:
    token = tmp_path / "token"
    token.write_text("expired")
    plugin = tmp_path / "plugin"
    credential = (
        '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "%s"}}'
    )
    plugin.write_text(f"#!/bin/sh\nprintf '{credential}' \"$(cat {token})\"\n")
    plugin.chmod(0o700)
    user: dict[str, Any] = {"tokenFile": str(token)}
    if way == "plugin":
        user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    content = yaml.safe_load(control_plane.kubeconfig.read_text())
    content["users"][0]["user"] = user
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(content))
    async with connect(kubeconfig) as cluster:
        token.write_text(control_plane.admin_token)
        assert await cluster.server_version() >= (1, 29)
        assert cluster.access.authorization == f"Bearer {control_plane.admin_token}"


async def test_credentials_that_nobody_accepts(control_plane: ControlPlane, tmp_path: Path) -> None:
    content = yaml.safe_load(control_plane.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": "forged"}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(content))
    async with connect(kubeconfig) as cluster:
        with pytest.raises(Forbidden, match="does not accept our credentials"):
            await cluster.get(kinds.POD, "default", "p")
