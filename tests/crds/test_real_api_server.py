"""The CRD as a real API server takes it: what our own reading of the schema says must be what it does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import builders
import crd_schema
from cluster_api import Refused
from cluster_handle import Cluster
from kvferry_operator.api.parse import parse
from rule_cases import FLAT

Create = Callable[..., dict[str, Any]]
_STRICT_DRY_RUN = "?dryRun=All&fieldValidation=Strict"


@pytest.fixture(scope="module")
def models(cluster: Cluster) -> str:
    """The path of a new namespace's objects."""
    return f"/apis/kvferry.io/v1alpha1/namespaces/{cluster.namespace('crd')}/disaggregatedmodels"


@pytest.fixture(scope="module")
def stored(cluster: Cluster, models: str) -> Create:
    """What the API server would store for an object, or would refuse."""

    def create(manifest: dict[str, Any], query: str = _STRICT_DRY_RUN) -> dict[str, Any]:
        del manifest["metadata"]["namespace"]
        made: dict[str, Any] = cluster.api.create(models, manifest, query)
        return made

    return create


def test_the_crd_is_established_and_all_of_its_schema_is_structural(cluster: Cluster) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/disaggregatedmodels.kvferry.io"
    found = cluster.api.get(path)
    conditions = {item["type"]: item["status"] for item in found["status"]["conditions"]}
    assert (conditions["Established"], conditions["NamesAccepted"]) == ("True", "True")
    assert "NonStructuralSchema" not in conditions
    assert found["spec"]["versions"][0]["schema"] == crd_schema.crd()["spec"]["versions"][0]["schema"]


def test_the_crd_is_small_enough_for_client_side_apply(cluster: Cluster) -> None:
    """`kubectl apply` keeps the whole object in an annotation, and annotations have 256 KiB together."""
    assert len(json.dumps(crd_schema.crd(), separators=(",", ":"))) < 200 * 1024
    cluster.kubectl("apply", "--dry-run=server", "--filename", str(crd_schema.CRD_FILE))


@pytest.mark.parametrize(("message", "good", "bad", "path"), FLAT)
def test_a_rule_lets_the_good_object_through_and_stops_the_bad_one(
    stored: Create, message: str, good: dict[str, Any], bad: dict[str, Any], path: str
) -> None:
    stored(builders.raw(good))
    with pytest.raises(Refused) as caught:
        stored(builders.raw(bad))
    assert caught.value.reason == "Invalid"
    assert any(cause["message"].endswith(message) for cause in caught.value.causes), caught.value.causes


@pytest.mark.parametrize("example", crd_schema.EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_stored_with_the_defaults_that_the_code_knows(stored: Create, example: Path) -> None:
    raw = yaml.safe_load(example.read_text())
    raw["metadata"].setdefault("namespace", "default")
    expected = crd_schema.defaulted(raw)["spec"]
    made = stored(raw)
    assert made["spec"] == expected
    assert parse(made).spec == parse(raw | {"metadata": made["metadata"]}).spec


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("transfer.compresion", {"method": "fp8"}),
        ("prefill.replica", 2),
        ("decode.rdma.cuont", 1),
        ("engine.env", [{"name": "A", "vale": "1"}]),
    ],
)
def test_a_field_that_is_not_in_the_schema_is_refused_by_name(stored: Create, path: str, value: Any) -> None:
    with pytest.raises(Refused, match=r'unknown field "spec\.'):
        stored(builders.raw({path: value}))


def test_nothing_of_a_full_status_is_pruned(cluster: Cluster, models: str, stored: Create) -> None:
    """Case 13."""
    stored(builders.raw(name="full"), "")
    status = _sample(crd_schema.schema()["properties"]["status"])
    manifest = {"apiVersion": "kvferry.io/v1alpha1", "kind": "DisaggregatedModel", "status": status}
    cluster.api.apply(f"{models}/full/status", manifest)
    found = cluster.api.get(f"{models}/full")
    assert found["status"] == status
    assert found["metadata"]["generation"] == 1


def test_a_status_key_that_is_not_in_the_schema_is_refused_and_not_lost_in_silence(
    cluster: Cluster, models: str, stored: Create
) -> None:
    """Case 13."""
    stored(builders.raw(name="extra"), "")
    manifest = {"apiVersion": "kvferry.io/v1alpha1", "kind": "DisaggregatedModel", "status": {"fase": "Ready"}}
    with pytest.raises(Refused, match="fase"):
        cluster.api.apply(f"{models}/extra/status", manifest)


def test_writing_the_object_leaves_its_status_and_writing_status_leaves_the_object(
    cluster: Cluster, models: str, stored: Create
) -> None:
    stored(builders.raw(name="apart"), "")
    cluster.api.merge(f"{models}/apart", {"spec": {"paused": True}, "status": {"phase": "Lie"}})
    cluster.api.merge(f"{models}/apart/status", {"spec": {"paused": False}, "status": {"phase": "Truth"}})
    found = cluster.api.get(f"{models}/apart")
    assert (found["spec"]["paused"], found["status"]["phase"]) == (True, "Truth")


def test_the_scale_subresource_tells_an_autoscaler_all_it_needs(cluster: Cluster, models: str, stored: Create) -> None:
    """Case 11."""
    stored(builders.raw({"decode.replicas": 3}, name="scaled"), "")
    selector = "kvferry.io/model=scaled,kvferry.io/role=decode,kvferry.io/stage=0"
    cluster.api.merge(f"{models}/scaled/status", {"status": {"decodeReplicas": 2, "selector": selector}})
    scale = cluster.api.get(f"{models}/scaled/scale")
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 2, "selector": selector}

    cluster.api.merge(f"{models}/scaled/scale", {"spec": {"replicas": 5}})
    assert cluster.api.get(f"{models}/scaled")["spec"]["decode"]["replicas"] == 5


def test_kubectl_get_shows_the_columns_that_people_look_for(cluster: Cluster, models: str, stored: Create) -> None:
    stored(builders.raw(name="shown"), "")
    ready = {"type": "Ready", "status": "False", "reason": "PeerUnreachable", "message": "no way to decode-0"}
    status = {
        "summary": {"prefill": "1/1", "decode": "0/1"},
        "transfer": {"transport": "tcp", "codec": "fp8"},
        "conditions": [ready | {"lastTransitionTime": "2026-01-02T03:04:05Z"}],
    }
    cluster.api.merge(f"{models}/shown/status", {"status": status})
    namespace = models.split("/")[5]
    narrow = cluster.kubectl("get", "dm", "shown", "-n", namespace).splitlines()
    wide = cluster.kubectl("get", "dm", "shown", "-n", namespace, "-o", "wide").splitlines()
    assert narrow[0].split() == ["NAME", "MODEL", "PREFILL", "DECODE", "TRANSPORT", "CODEC", "READY", "AGE"]
    assert narrow[1].split()[2:7] == ["1/1", "0/1", "tcp", "fp8", "False"]
    assert "PeerUnreachable" in wide[1]
    assert "no way to decode-0" in wide[1]


def _sample(node: dict[str, Any]) -> Any:
    """A value with every field that the schema has."""
    if "enum" in node:
        return node["enum"][0]
    match node["type"]:
        case "object":
            return {key: _sample(child) for key, child in node["properties"].items()}
        case "array":
            return [_sample(node["items"])]
        case "integer":
            return 7
        case _:
            return "2026-01-02T03:04:05Z" if node.get("format") == "date-time" else "Sample"
