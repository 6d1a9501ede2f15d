"""Objects that are wrong: refused where the API server can, told of where it could not, and to nobody else's harm."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any

import pytest

import background_kubelet
import builders
import control_plane as planes
import crd_schema
import operator_process
from builders import MISSING
from cluster_api import Refused
from eventually import eventually
from kvferry_operator.api import names
from kvferry_operator.kube import kinds
from model_namespace import ModelNamespace
from operator_process import OperatorProcess

Manifest = dict[str, Any]

RESYNC_SECONDS = 2
NODES: dict[str, dict[str, str]] = {"input": {}}
LATER_FIELDS = ("decodeReplicas", "summary", "fingerprint")
UNVERIFIED = {"transfer.verify.required": False}


def old_crd() -> Manifest:
    """One without rules, bounds and types below spec, without a part of the status, and without scale, which looks at
    the type of a number."""
    crd = copy.deepcopy(crd_schema.crd())
    version = crd["spec"]["versions"][0]
    del version["subresources"]["scale"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    properties["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for field in LATER_FIELDS:
        del properties["status"]["properties"][field]
    return crd


@pytest.fixture(scope="module")
def old() -> Iterator[ModelNamespace]:
    """Models in a cluster with an old CRD, whose pods become ready."""
    with planes.start(manifests=[old_crd()]) as plane:
        if plane.missing:
            pytest.skip(f"no {' and no '.join(plane.missing)}: unset KUBEBUILDER_ASSETS to have them built")
        with background_kubelet.playing(plane.api.access, NODES):
            yield ModelNamespace(plane, "old")


@pytest.fixture(scope="module")
def operator(old: ModelNamespace) -> Iterator[OperatorProcess]:
    flags = [f"--resync-seconds={RESYNC_SECONDS}"]
    with operator_process.running(old.kubeconfig, old.name, flags=flags) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def neighbour(old: ModelNamespace, operator: OperatorProcess) -> Iterator[str]:
    """A good model, that is as it was when the test is over."""
    if "neighbour" not in {each["metadata"]["name"] for each in old.plane.api.get(old.path(kinds.MODEL))["items"]}:
        old.create(UNVERIFIED, "neighbour")
    old.wait_condition("Ready", "True", name="neighbour")
    before = old.uids("Pod", "neighbour"), old.uids("StatefulSet", "neighbour")
    yield "neighbour"
    assert (old.uids("Pod", "neighbour"), old.uids("StatefulSet", "neighbour")) == before
    assert old.condition("Ready", "neighbour")["status"] == "True"
    assert operator.exit_code is None


# What the API server refuses.

REFUSED = [
    ({"model.uri": MISSING}, "spec.model.uri"),
    ({"model.uri": "ftp://somewhere/else"}, "spec.model.uri"),
    ({"prefill.replicas": -1}, "spec.prefill.replicas"),
    ({"decode.replicas": "two"}, "spec.decode.replicas"),
    ({"decode.parallelism.pipeline": 65}, "spec.decode.parallelism.pipeline"),
    ({"engine.type": "magic"}, "spec.engine.type"),
    ({"prefill.rdma": {"mode": "devicePlugin", "resourceName": "rdma/hca", "count": 0}}, "spec.prefill.rdma.count"),
    ({"prefill.rdma": {"mode": "devicePlugin", "resourceName": "hca"}}, "spec.prefill.rdma.resourceName"),
    ({"transfer.compression": {"method": "zip"}}, "spec.transfer.compression.method"),
    ({"transfer.compression": {"maxRelativeError": "much"}}, "spec.transfer.compression.maxRelativeError"),
    ({"transfer.timeoutSeconds": 0}, "spec.transfer.timeoutSeconds"),
    ({"router.service": {"port": 70000}}, "spec.router.service.port"),
    ({"prefill": MISSING}, "spec.prefill"),
]


@pytest.mark.parametrize(("changes", "field"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_the_api_server_names_the_field_that_it_refuses(
    control_plane: planes.ControlPlane, changes: Manifest, field: str
) -> None:
    """Cases 2, 3 and 14."""
    manifest = builders.raw(changes)
    manifest["metadata"]["namespace"] = "default"
    path = "/apis/kvferry.io/v1alpha1/namespaces/default/disaggregatedmodels?dryRun=All&fieldValidation=Strict"
    with pytest.raises(Refused) as caught:
        control_plane.api.create(path, manifest)
    assert (caught.value.code, caught.value.reason) == (422, "Invalid")
    assert field in [cause["field"] for cause in caught.value.causes]


# What an old CRD lets through.


def test_an_old_crd_is_told_of_and_good_models_work_with_it(
    old: ModelNamespace, operator: OperatorProcess, neighbour: str
) -> None:
    status, said = operator.get("/readyz")
    assert status == 200 and "the CRD is of another release" in said and "apply crds/" in said
    assert operator.metric("kvferry_operator_crd_outdated") == 1
    written = old.model(neighbour)["status"]
    assert not written.keys() & set(LATER_FIELDS) and written["roles"]
    old.wait_quiet()
    mark = old.plane.audit_position()
    time.sleep(2.5 * RESYNC_SECONDS)
    assert old.writes(mark) == []


def test_every_error_is_told_and_what_runs_goes_on(old: ModelNamespace, neighbour: str) -> None:
    old.create(UNVERIFIED, "mended")
    old.wait_condition("Ready", "True", name="mended")
    good, running = old.model("mended")["spec"], old.uids("Pod", "mended")
    wrong = {
        "prefill": {"replicas": -1, "rdma": {"mode": "devicePlugin"}},
        "decode": {"replicas": "two", "replica": 3},
        "engine": {"type": "custom"},
        "transfer": {"compression": {"method": "zip"}, "bufferBytes": "1Zi"},
        "model": {"uri": None},
    }
    old.edit(wrong, "mended")
    invalid = old.wait_condition("SpecValid", "False", "SpecInvalid", "mended")
    for path in (
        "spec.model.uri",
        "spec.prefill.replicas",
        "spec.decode.replicas",
        "spec.decode.replica:",
        "spec.transfer.compression.method",
        "spec.transfer.bufferBytes",
    ):
        assert path in invalid["message"], invalid["message"]
    stalled = old.condition("Stalled", "mended")
    assert stalled["status"] == "True" and "what runs stays as it is until the object is mended" in stalled["message"]
    assert old.model("mended")["status"]["observedGeneration"] == old.model("mended")["metadata"]["generation"]

    time.sleep(2.5 * RESYNC_SECONDS)
    assert len(old.events("mended", "SpecInvalid")) == 1
    assert old.uids("Pod", "mended") == running

    manifest = old.model("mended")
    old.plane.api.request("PUT", old.path(kinds.MODEL, "mended"), {**manifest, "spec": good})
    old.wait_condition("SpecValid", "True", name="mended")
    old.wait_condition("Ready", "True", name="mended")
    assert old.uids("Pod", "mended") == running


SHAPES: dict[str, tuple[Any, str]] = {
    "empty": ({}, "spec.engine: is required"),
    "lists": ({"model": [], "engine": [], "prefill": [], "decode": []}, "spec.prefill: must be an object"),
    "texts": ({"model": "m", "engine": "e", "prefill": "p", "decode": "d"}, "spec.engine: must be an object"),
    "numbers": (
        builders.raw({"decode.replicas": 1.5, "model.uri": 7, "paused": "yes"})["spec"],
        "spec.decode.replicas: must be a whole number",
    ),
    "huge": (
        builders.raw({"decode.replicas": 1 << 62, "transfer.bufferBytes": "9" * 300})["spec"],
        "spec.decode.replicas: must be at most",
    ),
    "unknown": (builders.raw({"transfer.compresion": {"method": "fp8"}})["spec"], "did you mean compression?"),
    "rules": (builders.raw({"decode.replicas": 0})["spec"], "must both be zero or both be positive"),
    "clash": (
        builders.raw({"decode.template": {"spec": {"containers": [{"name": "kvferry-sidecar"}] * 2}}})["spec"],
        "spec.decode.template",
    ),
}


def test_an_object_of_any_shape_gets_a_status_and_no_children(old: ModelNamespace, neighbour: str) -> None:
    for name, (spec, _) in SHAPES.items():
        metadata = {"name": name, "namespace": old.name}
        manifest = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}
        old.plane.api.create(old.path(kinds.MODEL), manifest)
    for name, (_, said) in SHAPES.items():
        assert said in old.wait_condition("SpecValid", "False", name=name)["message"]
        assert old.children(name) == {}
    time.sleep(1.5 * RESYNC_SECONDS)
    assert {name: len(old.events(name, "SpecInvalid")) for name in SHAPES} == dict.fromkeys(SHAPES, 1)


# Names.


def test_impossible_names_get_legal_children_and_no_two_models_the_same(control_plane: planes.ControlPlane) -> None:
    """Case 1."""
    chosen = ["llama-3.2-3b", "9lives", "m.1", "m-1", f"m-1-{names.short_hash('m.1')}", "a" * 200 + ".b", "b" * 253]
    models = ModelNamespace(control_plane, "names")
    with (
        background_kubelet.playing(control_plane.api.access, NODES),
        operator_process.running(models.kubeconfig, models.name) as operator,
    ):
        operator.wait_ready()
        uids = {name: models.create(UNVERIFIED, name)["metadata"]["uid"] for name in chosen}
        for name in chosen:
            models.wait_condition("Ready", "True", name=name)
        for name in chosen:
            assert {_owner(child) for child in models.children(name).values()} == {uids[name]}
            assert len(models.uids("Pod", name)) == 3
        eventually(lambda: models.events(chosen[-1]), "an Event of the longest name")


def _owner(child: Manifest) -> str:
    (owner,) = child["metadata"]["ownerReferences"]
    return str(owner["uid"])
