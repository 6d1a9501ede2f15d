"""Children of a model on a real API server: made once, kept, healed, pruned, and never taken from others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import background_kubelet
import cluster_api
import control_plane as planes
import operator_process
from audit_log import Request
from eventually import eventually
from kvferry_operator.kube import kinds
from model_namespace import ModelNamespace
from operator_process import OperatorProcess

RESYNC_SECONDS = 2
SERVICE = kinds.CHILDREN[5]
CONFIG_MAP = kinds.CHILDREN[3]
STEADY_SECONDS = 2.5 * RESYNC_SECONDS
READS = ("list", "watch")
"""Of all models at once."""


@pytest.fixture(scope="module")
def models(control_plane: planes.ControlPlane) -> Iterator[ModelNamespace]:
    """In a cluster whose pods become ready."""
    with background_kubelet.playing(control_plane.api.access, {"children": {}}):
        yield ModelNamespace(control_plane, "children")


@pytest.fixture(scope="module")
def operator(models: ModelNamespace) -> Iterator[OperatorProcess]:
    """One for the module: each test has a model of its own."""
    with operator_process.running(
        models.kubeconfig, models.name, flags=[f"--resync-seconds={RESYNC_SECONDS}"]
    ) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest, models: ModelNamespace) -> Iterator[str]:
    """Of the test's own model, which goes with the test."""
    chosen = request.node.originalname.removeprefix("test_").replace("_", "-")[:24].strip("-")
    yield chosen
    models.plane.kubectl("delete", "dm", chosen, "-n", models.name, "--ignore-not-found")


def test_each_child_is_made_once_and_the_key_too(models: ModelNamespace, operator: OperatorProcess, name: str) -> None:
    mark = models.plane.audit_position()
    made = models.create(name=name)
    children = models.wait_children(name)
    assert {kind for kind, _ in children} == {
        "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "NetworkPolicy", "Service", "StatefulSet", "Deployment",
        "Secret",
    }  # fmt: skip
    for child in children.values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)
    others = ("", "disaggregatedmodels", "events", "leases", "pods")

    def asked_for() -> list[Request]:
        """As written down, which may be a moment after others see what was made."""
        return [each for each in models.requests(mark) if each.resource not in others and each.verb not in READS]

    eventually(lambda: len(asked_for()) >= len(children), "every child was asked for")
    asked = asked_for()
    assert {(each.verb, each.code) for each in asked} == {("create", 201)}, "one request for each child, and no other"
    assert len(asked) == len(children)
    models.wait_condition("Ready", "False", name=name)
    eventually(lambda: "disaggregatedmodels" in {each.resource for each in models.writes(mark)}, "the status is told")
    told = [each.resource for each in models.writes(mark)]
    assert told.index("disaggregatedmodels") > max(turn for turn, each in enumerate(told) if each not in others)
    model = models.model(name)
    assert "finalizers" not in model["metadata"] and "annotations" not in model["metadata"]


def test_what_is_deleted_comes_back(models: ModelNamespace, operator: OperatorProcess, name: str) -> None:
    """Case 4."""
    models.create({"decode.replicas": 2, "transfer.verify.required": False}, name)
    models.wait_condition("Ready", "True", name=name)
    before = models.uids("Pod", name)
    decode = sorted(models.uids("Pod", name, "decode"))
    (router,) = models.uids("Pod", name, "router")
    (service,) = [each for each in models.uids("Service", name) if "decode" in each]
    (deployment,) = models.uids("Deployment", name)

    models.delete("Pod", decode[0])
    eventually(lambda: decode[0] in models.uids("Pod", name) and models.uids("Pod", name) != before, "the decode pod")
    assert len(models.uids("Pod", name, "decode")) <= 2
    models.delete("Pod", router)
    eventually(lambda: len(set(models.uids("Pod", name, "router")) - {router}) == 1, "a router pod")
    for kind, child in (("Service", service), ("Deployment", deployment)):
        gone = models.uids(kind, name)[child]
        models.delete(kind, child)
        eventually(lambda: models.uids(kind, name).get(child, gone) != gone, f"{kind} {child}")  # noqa: B023
    models.wait_condition("Ready", "True", name=name)
    after = models.uids("Pod", name)
    untouched = [pod for pod in before if pod not in (decode[0], router) and "router" not in pod]
    assert [after[pod] for pod in untouched] == [before[pod] for pod in untouched]
    assert len(models.uids("Pod", name, "decode")) == 2


def test_a_steady_model_costs_no_write(models: ModelNamespace, operator: OperatorProcess, name: str) -> None:
    """Case 5: nothing, then a status edit from outside, then an annotation."""
    made = models.create({"transfer.verify.required": False}, name)
    models.wait_condition("Ready", "True", name=name)
    models.wait_quiet()
    assert _writes_while_steady(models) == []

    status = models.model(name)["status"]
    conditions = [{**each, "message": "edited"} if each["type"] == "Ready" else each for each in status["conditions"]]
    path = f"{models.path(kinds.MODEL, name)}/status"
    mark = models.plane.audit_position()
    models.plane.api.merge(path, {"status": {"phase": "Edited", "conditions": conditions}})
    eventually(lambda: models.model(name)["status"] == status, "the status is as it was")
    assert _writes_while_steady(models) == []
    assert [(each.resource, each.subresource) for each in models.writes(mark)] == [("disaggregatedmodels", "status")]

    mark = models.plane.audit_position()
    theirs = {**status["conditions"][0], "type": "Theirs"}
    models.plane.api.merge(path, {"status": {"conditions": [*status["conditions"], theirs]}})
    time.sleep(STEADY_SECONDS)
    assert len(models.writes(mark)) <= 1, "what is not ours is not fought over"

    mark = models.plane.audit_position()
    models.plane.api.merge(models.path(kinds.MODEL, name), {"metadata": {"annotations": {"example.com/note": "x"}}})
    time.sleep(STEADY_SECONDS)
    assert models.writes(mark) == []
    assert models.model(name)["metadata"]["generation"] == made["metadata"]["generation"]


def test_what_somebody_changed_is_set_right_and_additions_stay(
    models: ModelNamespace, operator: OperatorProcess, name: str
) -> None:
    models.create(name=name)
    models.wait_children(name)
    (deployment,) = models.objects("Deployment", name)
    path = models.path(kinds.DEPLOYMENT, deployment["metadata"]["name"])
    models.plane.api.merge(path, {"spec": {"replicas": 3}, "metadata": {"labels": {"example.com/team": "a"}}})
    eventually(lambda: models.objects("Deployment", name)[0]["spec"]["replicas"] == 1, "the replicas are ours")
    assert models.objects("Deployment", name)[0]["metadata"]["labels"]["example.com/team"] == "a"
    (service,) = [each for each in models.uids("Service", name) if "router" in each]
    models.plane.api.merge(models.path(SERVICE, service), {"metadata": {"labels": {"kvferry.io/model": None}}})
    eventually(lambda: service in models.uids("Service", name), "its label is there again")


def test_a_removed_stage_and_role_are_pruned_and_nothing_else(
    models: ModelNamespace, operator: OperatorProcess, name: str
) -> None:
    """Case 6."""
    models.create({"decode.parallelism.pipeline": 2, "transfer.verify.required": False}, name)
    models.wait_condition("Ready", "True", name=name)
    foreign = _config_map(f"{name}-foreign", models.objects("Service", name)[0]["metadata"]["labels"])
    foreign["metadata"]["uid"] = models.plane.api.create(models.path(CONFIG_MAP), foreign)["metadata"]["uid"]
    old = models.uids("StatefulSet", name)
    assert len(old) == 3

    models.edit({"mode": "Aggregated", "prefill": None, "decode": {"parallelism": {"pipeline": 1}}}, name)
    eventually(lambda: len(models.uids("StatefulSet", name)) == 1, "one stage of one role is left")
    (left,) = models.uids("StatefulSet", name)
    assert "decode" in left and left not in old
    eventually(lambda: [each for each in models.uids("Service", name) if "prefill" in each] == [], "no prefill Service")
    eventually(lambda: len(models.uids("ConfigMap", name)) == 2, "one ConfigMap of ours, and the foreign one")
    assert models.uids("ConfigMap", name)[f"{name}-foreign"] == foreign["metadata"]["uid"]

    models.plane.kubectl("delete", "dm", name, "-n", models.name)
    eventually(lambda: set(models.children(name)) == {("ConfigMap", f"{name}-foreign")}, "all is gone but the foreign")


def test_one_delete_that_fails_does_not_stop_the_others(
    models: ModelNamespace, operator: OperatorProcess, name: str
) -> None:
    """Case 6."""
    models.create({"router.replicas": 2}, name)
    models.wait_children(name)
    labels = models.objects("Service", name)[0]["metadata"]["labels"]
    owners = models.objects("Service", name)[0]["metadata"]["ownerReferences"]
    policy = _deny_deletes(f"{name}-held")
    models.plane.api.create("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", policy)
    binding = {
        "metadata": {"name": f"{name}-held"},
        "spec": {"policyName": f"{name}-held", "validationActions": ["Deny"]},
    }
    models.plane.api.create("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", binding)
    try:
        _until_denied(models, f"{name}-held")
        for leftover in ("left-1", "left-2"):
            models.plane.api.create(models.path(CONFIG_MAP), _config_map(f"{name}-{leftover}", labels, owners))
        held = {"metadata": {"labels": labels, "ownerReferences": owners}}
        models.plane.api.merge(models.path(CONFIG_MAP, f"{name}-held"), held)
        eventually(lambda: f"{name}-left-2" not in models.uids("ConfigMap", name), "those that can be are removed")
        eventually(lambda: f"{name}-left-1" not in models.uids("ConfigMap", name), "both of them")
        assert f"{name}-held" in models.uids("ConfigMap", name)
    finally:
        models.plane.api.delete(f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}-held")
    eventually(lambda: f"{name}-held" not in models.uids("ConfigMap", name), "the last one, when it can be", 240)


def test_a_paused_model_is_left_alone(models: ModelNamespace, operator: OperatorProcess, name: str) -> None:
    models.create(name=name)
    models.wait_children(name)
    models.edit({"paused": True}, name)
    models.wait_condition("Reconciling", "False", "Paused", name)
    (deployment,) = models.uids("Deployment", name)
    models.delete("Deployment", deployment)
    time.sleep(STEADY_SECONDS)
    assert models.uids("Deployment", name) == {}
    models.edit({"paused": False}, name)
    eventually(lambda: models.uids("Deployment", name), "it comes back")


def test_an_invalid_model_is_told_and_its_pods_stay(
    models: ModelNamespace, operator: OperatorProcess, name: str
) -> None:
    models.create({"transfer.verify.required": False}, name)
    models.wait_condition("Ready", "True", name=name)
    pods = models.uids("Pod", name)
    # the CRD cannot know what clashes inside a template
    models.edit({"decode": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}, "restartID": "next"}, name)
    invalid = models.wait_condition("SpecValid", "False", name=name)
    assert "spec.decode.template.spec.terminationGracePeriodSeconds" in invalid["message"]
    models.wait_condition("Ready", "False", name=name)
    assert models.model(name)["status"]["observedGeneration"] == models.model(name)["metadata"]["generation"]
    assert models.uids("Pod", name) == pods
    models.edit({"decode": {"template": None}, "restartID": ""}, name)
    models.wait_condition("SpecValid", "True", name=name)
    models.wait_condition("Ready", "True", name=name)
    assert models.uids("Pod", name) == pods


def test_a_foreign_object_in_the_way_is_reported_and_untouched(
    models: ModelNamespace, operator: OperatorProcess, name: str
) -> None:
    theirs = models.plane.api.create(
        models.path(SERVICE), {"metadata": {"name": f"{name}-router"}, "spec": {"ports": [{"port": 81}]}}
    )
    models.create(name=name)
    stalled = models.wait_condition("Stalled", "True", "NameConflict", name)
    assert f"Service/{name}-router" in stalled["message"]
    assert len(models.uids("StatefulSet", name)) == 2, "the others are made"
    now = models.plane.api.get(models.path(SERVICE, f"{name}-router"))
    assert now["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]


def test_a_model_that_is_made_anew_gets_new_children(
    models: ModelNamespace, operator: OperatorProcess, name: str
) -> None:
    models.create(name=name)
    before = models.wait_children(name)
    models.plane.kubectl("delete", "dm", name, "-n", models.name)
    made = models.create(name=name)

    def owners() -> set[str]:
        return {child["metadata"]["ownerReferences"][0]["uid"] for child in models.children(name).values()}

    eventually(lambda: owners() == {made["metadata"]["uid"]} and len(models.children(name)) == len(before), "new ones")


def _writes_while_steady(models: ModelNamespace) -> list[tuple[str, str, str]]:
    mark = models.plane.audit_position()
    time.sleep(STEADY_SECONDS)
    return [(each.verb, each.resource, each.name) for each in models.writes(mark)]


def _config_map(name: str, labels: dict[str, str], owners: list[Any] | None = None) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels, "ownerReferences": owners or []}, "data": {}}


def _deny_deletes(name: str) -> dict[str, Any]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["configmaps"]}
    return {
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{**rule, "resourceNames": [name]}]},
            "validations": [{"expression": "false", "message": "held by the test"}],
        },
    }


def _until_denied(models: ModelNamespace, name: str) -> None:
    """A policy acts some time after it was made."""

    def denied() -> bool:
        try:
            models.plane.api.delete(f"{models.path(CONFIG_MAP, name)}?dryRun=All")
        except cluster_api.Refused as error:
            return "held by the test" in str(error)
        return False

    models.plane.api.create(models.path(CONFIG_MAP), {"metadata": {"name": name}, "data": {}})
    eventually(denied, "the policy acts")
