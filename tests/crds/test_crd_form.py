"""What users of `kubectl` and autoscalers rely on, and what keeps the API server from dropping a field in silence."""

from __future__ import annotations

import pytest

import crd_schema

NODES = list(crd_schema.walk(crd_schema.schema()))
OPEN_PARTS = {"template", "valueFrom"}


def test_the_crd_can_be_applied_by_every_client() -> None:
    # the annotation of client-side apply holds 256 KiB; well below, so that growth is noticed early
    assert crd_schema.CRD_FILE.stat().st_size < 100_000


def test_columns_tell_the_state_in_one_line() -> None:
    version = crd_schema.crd()["spec"]["versions"][0]
    columns = {column["name"]: column.get("priority", 0) for column in version["additionalPrinterColumns"]}
    assert columns == {
        "Model": 0,
        "Prefill": 0,
        "Decode": 0,
        "Transport": 0,
        "Codec": 0,
        "Ready": 0,
        "Reason": 1,
        "Message": 1,
        "Age": 0,
    }


def test_the_scale_subresource_counts_decode_groups() -> None:
    scale = crd_schema.crd()["spec"]["versions"][0]["subresources"]["scale"]
    assert scale == {
        "specReplicasPath": ".spec.decode.replicas",
        "statusReplicasPath": ".status.decodeReplicas",
        "labelSelectorPath": ".status.selector",
    }
    status = crd_schema.schema()["properties"]["status"]["properties"]
    assert status["selector"]["type"] == "string"
    assert status["decodeReplicas"]["type"] == "integer"


def test_status_is_a_subresource() -> None:
    assert crd_schema.crd()["spec"]["versions"][0]["subresources"]["status"] == {}


@pytest.mark.parametrize(("path", "node"), NODES, ids=[path or "root" for path, _ in NODES])
def test_every_part_is_described_bounded_and_closed(path: str, node: dict[str, object]) -> None:
    name = path.rpartition(".")[2]
    if path.startswith((".spec", ".status")) and not path.endswith(("[]", "{}")):
        assert node.get("description"), "a field without description"
    if node.get("type") == "string" and path not in (".apiVersion", ".kind") and "format" not in node:
        assert "enum" in node or "maxLength" in node, "text without bound"
    if node.get("type") == "array":
        assert "maxItems" in node, "a list without bound"
        assert "x-kubernetes-list-type" in node, "a list that two writers would overwrite"
    if node.get("type") == "integer":
        assert "minimum" in node, "a number without bound"
    if "x-kubernetes-preserve-unknown-fields" in node:
        assert name in OPEN_PARTS, "a part in which a misspelt field would go unnoticed"
    if node.get("type") == "object" and path not in (".metadata",):
        closed = "properties" in node or "additionalProperties" in node
        assert closed or name in OPEN_PARTS, "an object without fields"


def test_defaults_of_nested_fields_are_reached() -> None:
    # the API server fills in a nested default only if the object around it is there or has a default itself
    for path, node in crd_schema.walk(crd_schema.spec_schema()):
        for key, child in node.get("properties", {}).items():
            has_default_below = any("default" in below for _, below in crd_schema.walk(child))
            optional_on_purpose = (path, key) in {("", "prefill"), (".model", "tokenSecretRef")}
            if child.get("type") == "object" and has_default_below and not optional_on_purpose:
                assert "default" in child or key in node.get("required", ()), f"{path}.{key}"
