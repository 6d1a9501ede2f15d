"""Everything that is wrong with an object is said at once, by path, and no stored object makes the parser crash."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import builders
from builders import MISSING
from kvferry_operator.api.parse import parse
from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.desired.build import build
from kvferry_operator.desired.settings import Settings
from kvferry_operator.errors import SpecInvalid


def errors_of(raw: object) -> list[str]:
    with pytest.raises(SpecInvalid) as caught:
        parse(raw)
    return list(map(str, caught.value.errors))


def test_the_minimal_object_is_complete() -> None:
    built = builders.model()
    assert (built.name, built.namespace, built.spec.decode.replicas) == ("tiny", "models", 1)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"decode.replicas": -1}, "spec.decode.replicas: must be at least 0, found -1"),
        ({"decode.replicas": 5000}, "spec.decode.replicas: must be at most 1000, found 5000"),
        ({"decode.replicas": 2.0}, "spec.decode.replicas: must be a whole number, found 2.0"),
        ({"decode.replicas": True}, "spec.decode.replicas: must be a whole number, found True"),
        ({"decode.replicas": "2"}, "spec.decode.replicas: must be a whole number, found '2'"),
        ({"decode.replicas": MISSING}, "spec.decode.replicas: is required"),
        ({"decode": MISSING}, "spec.decode: is required"),
        ({"decode": []}, "spec.decode: must be an object, found a list"),
        ({"transfer.compresion": {}}, "spec.transfer.compresion: unknown field; did you mean compression?"),
        ({"decode.replica": 4}, "spec.decode.replica: unknown field; did you mean replicas?"),
        ({"nonsense": 1}, "spec.nonsense: unknown field"),
        (
            {"engine.type": "vlm"},
            "spec.engine.type: must be one of reference, vllm, custom, found 'vlm'; did you mean vllm?",
        ),
        ({"prefill.rdma.count": 0.5}, "spec.prefill.rdma.count: must be a whole number, found 0.5"),
        ({"prefill.rdma.count": -1}, "spec.prefill.rdma.count: must be at least 1, found -1"),
        (
            {"prefill.rdma.resourceName": "hca"},
            "spec.prefill.rdma.resourceName: must be a resource name with its domain, such as rdma/hca, found 'hca'",
        ),
        ({"transfer.bufferBytes": "1MiB"}, "spec.transfer.bufferBytes: must be a quantity such as 256Mi, found '1MiB'"),
        ({"transfer.bufferBytes": "1Ki"}, "spec.transfer.bufferBytes: must be within 1Mi and 256Gi, found '1Ki'"),
        (
            {"transfer": {"bufferBytes": "2Mi"}},
            "spec.transfer.bufferBytes: must hold 4 chunks of overlap.chunkBytes, at least 16Mi",
        ),
        (
            {"transfer.compression.maxRelativeError": 0.05},
            'spec.transfer.compression.maxRelativeError: must be a decimal number as text, such as "0.05", found 0.05',
        ),
        (
            {"model.uri": "s3://x"},
            "spec.model.uri: must be file:///path, pvc://claim/path or hf://owner/name, found 's3://x'",
        ),
        ({"engine.env": [{"name": "A"}, {"name": "A"}]}, "spec.engine.env[1].name: appears twice: 'A'"),
        ({"prefill.rdma.networks": ["a", "a"]}, "spec.prefill.rdma.networks[1]: appears twice: 'a'"),
        (
            {"decode.resources.limits": {"cpu": "many"}},
            "spec.decode.resources.limits.cpu: must be a quantity such as 256Mi, found 'many'",
        ),
        ({"security.networkPolicy": "yes"}, "spec.security.networkPolicy: must be true or false, found 'yes'"),
        ({"decode.template": {1: 2}}, "spec.decode.template: has a key that is not text; put it in quotes"),
    ],
)
def test_error(changes: dict[str, Any], error: str) -> None:
    assert error in errors_of(builders.raw(changes))


def test_all_errors_are_reported_together() -> None:
    found = errors_of(builders.raw({"decode.replicas": -1, "engine.type": "x", "transfer.transport": "carrier"}))
    assert [line.partition(":")[0] for line in found] == [
        "spec.engine.type",
        "spec.decode.replicas",
        "spec.transfer.transport",
    ]


def test_another_kind_is_refused() -> None:
    assert "kind: must be DisaggregatedModel, found 'Pod'" in errors_of({**builders.raw(), "kind": "Pod"})


def test_null_reads_as_left_out() -> None:
    assert builders.model({"router": None, "transfer.ucx": None}).spec == builders.model().spec


def test_a_template_nested_without_end_is_refused_by_name() -> None:
    nested: dict[str, Any] = {}
    for _ in range(5000):
        nested = {"spec": nested}
    raw = builders.raw()
    raw["spec"]["decode"]["template"] = nested
    assert errors_of(raw) == ["spec.decode.template: is nested more than 64 levels deep"]


def test_a_template_that_unfolds_without_end_is_refused() -> None:
    folded: list[Any] = ["x"] * 9
    for _ in range(20):
        folded = [folded] * 9
    raw = builders.raw()
    raw["spec"]["decode"]["template"] = {"spec": {"x": folded}}
    assert errors_of(raw) == ["spec.decode.template: has more than 50000 values"]


def test_long_values_are_cut_in_messages() -> None:
    (line,) = errors_of(builders.raw({"engine.image": "a b" * 100}))
    assert len(line) < 200


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=12,
)
PATHS = st.sampled_from(
    [
        "mode", "model", "model.uri", "model.cache", "engine", "engine.env", "engine.args", "prefill", "decode",
        "decode.replicas", "decode.resources", "decode.resources.limits", "decode.rdma", "decode.rdma.networks",
        "decode.template", "decode.template.metadata", "decode.template.metadata.labels", "decode.template.spec",
        "decode.template.spec.containers", "decode.template.spec.volumes", "ratio", "router", "router.template.spec",
        "transfer", "transfer.ucx", "transfer.bufferBytes", "transfer.compression", "placement", "sidecar.env",
        "restartID", "paused",
    ]
)  # fmt: skip


def read_and_render(raw: object) -> DisaggregatedModel | None:
    """Accept or refuse; anything else is a crash."""
    try:
        model = parse(raw)
        build(model, Settings())
    except SpecInvalid as invalid:
        assert invalid.errors
        return None
    return model


@given(JSON)
@settings(max_examples=60)
def test_any_stored_document_is_read_or_refused(raw: object) -> None:
    assert read_and_render(raw) is None


@given(st.dictionaries(PATHS, JSON, min_size=1, max_size=3))
@settings(max_examples=200)
def test_any_stored_field_is_read_or_refused(changes: dict[str, Any]) -> None:
    try:
        raw = builders.raw(changes)
    except (AttributeError, TypeError):
        return  # a path through a value that is no object
    read_and_render(raw)


WORDS = st.sampled_from(
    ["engine", "kvferry-sidecar", "other", "name", "env", "value", "ports", "containerPort", "volumes", "resources",
     "limits", "rdma/hca", "securityContext", "readinessProbe", "exec", "httpGet", "$patch", "labels", "kvferry.io/x"]
)  # fmt: skip
POD_JSON = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=15,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "containers": st.lists(POD_JSON, max_size=2),
            "initContainers": POD_JSON,
            "volumes": POD_JSON,
            "ports": POD_JSON,
        },
    )
)
@settings(max_examples=200)
def test_any_pod_template_is_laid_on_or_refused(spec: dict[str, Any]) -> None:
    for container in spec.get("containers", ()):
        if isinstance(container, dict):
            container["name"] = "engine"
    read_and_render(builders.raw({"decode.template": {"spec": spec}}))
