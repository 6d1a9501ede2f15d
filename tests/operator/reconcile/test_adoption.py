"""What was created is owned as if it had been applied, before the first apply."""

from __future__ import annotations

from typing import Any

import pytest

from control_plane import ControlPlane
from kvferry_operator.api import names
from kvferry_operator.errors import Conflict
from kvferry_operator.kube import kinds
from kvferry_operator.kube.client import Cluster, connect
from kvferry_operator.reconcile.adoption import adopted

CONFIG_MAP = next(kind for kind in kinds.CHILDREN if kind.kind == "ConfigMap")
FIELDS = {"f:data": {".": {}, "f:old": {}}}
CREATED = {"manager": names.MANAGER, "operation": "Update", "apiVersion": "v1", "fieldsV1": FIELDS}
APPLIED = {**CREATED, "operation": "Apply"}
THEIRS = {**CREATED, "manager": "kubectl"}
STATUS = {**CREATED, "subresource": "status"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([], None, id="nobody's"),
        pytest.param([APPLIED, THEIRS], None, id="applied already"),
        pytest.param([STATUS], None, id="only a subresource"),
        pytest.param([CREATED], [APPLIED], id="created"),
        pytest.param([THEIRS, CREATED, STATUS], [THEIRS, STATUS, APPLIED], id="others keep theirs"),
        pytest.param(
            [{**APPLIED, "fieldsV1": {"f:data": {"f:new": {}}, "f:immutable": {}}}, CREATED],
            [{**APPLIED, "fieldsV1": {"f:data": {"f:new": {}, ".": {}, "f:old": {}}, "f:immutable": {}}}],
            id="applied over it: both sets of fields",
        ),
    ],
)
def test_what_we_created_counts_as_applied(before: list[dict[str, Any]], after: list[dict[str, Any]] | None) -> None:
    assert adopted(before) == after


async def test_an_apply_drops_what_was_created_and_is_no_longer_wanted(control_plane: ControlPlane) -> None:
    namespace = control_plane.namespace("adoption")
    metadata = {"name": "c", "namespace": namespace}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"old": "1", "kept": "1"}}
    path = f"/api/v1/namespaces/{namespace}/configmaps/c"
    async with connect(control_plane.kubeconfig) as cluster:
        made = await cluster.create(manifest)
        assert made is not None
        control_plane.api.apply(path, {**manifest, "data": {"theirs": "1"}}, manager="somebody")
        await _adopt(cluster, namespace)
        assert (await _read(cluster, namespace))["data"] == {"old": "1", "kept": "1", "theirs": "1"}
        applied = await cluster.apply({**manifest, "data": {"kept": "2"}})
    assert applied["data"] == {"kept": "2", "theirs": "1"}
    found = {(entry["manager"], entry["operation"]) for entry in applied["metadata"]["managedFields"]}
    assert found == {(names.MANAGER, "Apply"), ("somebody", "Apply")}


async def test_nobody_is_written_out_who_came_in_between(control_plane: ControlPlane) -> None:
    namespace = control_plane.namespace("adoption")
    metadata = {"name": "c", "namespace": namespace}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ours": "1"}}
    async with connect(control_plane.kubeconfig) as cluster:
        made = await cluster.create(manifest)
        assert made is not None
        managers = adopted(made["metadata"]["managedFields"])
        assert managers is not None
        control_plane.api.merge(f"/api/v1/namespaces/{namespace}/configmaps/c", {"data": {"theirs": "1"}})
        with pytest.raises(Conflict, match=f"patch ConfigMap {namespace}/c"):
            await cluster.set_managers(made, managers)


async def _adopt(cluster: Cluster, namespace: str) -> None:
    live = await _read(cluster, namespace)
    managers = adopted(live["metadata"]["managedFields"])
    assert managers is not None
    await cluster.set_managers(live, managers)


async def _read(cluster: Cluster, namespace: str) -> dict[str, Any]:
    found = await cluster.get(CONFIG_MAP, namespace, "c")
    assert found is not None
    return found
