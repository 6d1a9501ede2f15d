"""What stands in a model's way: it is told once, with what to do; nobody else suffers, and what runs goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import cluster_api
import control_plane as planes
import neighbourhood
import pod_behaviours
from eventually import eventually
from foreign_objects import foreign
from kvferry_operator.api import names
from kvferry_operator.kube import kinds
from model_namespace import ModelNamespace
from neighbourhood import RESYNC_SECONDS, UNVERIFIED, Neighbourhood, told_once

Manifest = dict[str, Any]

CONFIG_MAP = next(kind for kind in kinds.CHILDREN if kind.kind == "ConfigMap")
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@pytest.fixture(scope="module")
def around(control_plane: planes.ControlPlane) -> Iterator[Neighbourhood]:
    with neighbourhood.settled(control_plane, troubles=5) as around:
        yield around


@pytest.fixture
def models(around: Neighbourhood) -> Iterator[ModelNamespace]:
    with around.trouble() as models:
        yield models


def test_a_missing_token_is_named(models: ModelNamespace, around: Neighbourhood) -> None:
    lacks = pod_behaviours.waiting("CreateContainerConfigError", 'secret "hub-token" not found', "engine")
    around.steer(pod_behaviours.by_labels(({names.LABEL_MODEL: "gated", names.LABEL_ROLE: "prefill"}, lacks)))
    models.create({**UNVERIFIED, "model.tokenSecretRef": {"name": "hub-token"}}, "gated")
    stalled = models.wait_condition("Stalled", "True", "CreateContainerConfigError", "gated")
    assert 'container engine cannot be made: secret "hub-token" not found' in stalled["message"]
    assert models.condition("PrefillReady", "gated")["reason"] == "CreateContainerConfigError"
    assert 'secret "hub-token" not found' in told_once(models, "CreateContainerConfigError", "gated")["note"]
    models.wait_condition("DecodeReady", "True", name="gated")
    eventually(lambda: len(models.uids("Pod", "gated")) == 3, "a pod of prefill, of decode and of the router")
    running = models.uids("Pod", "gated")
    around.steer(lambda pod: pod_behaviours.READY)
    models.wait_condition("Ready", "True", name="gated")
    assert models.uids("Pod", "gated") == running


def test_a_deleted_key_comes_back_when_a_pod_waits_for_it(models: ModelNamespace, around: Neighbourhood) -> None:
    models.create(UNVERIFIED)
    models.wait_condition("Ready", "True")
    (key,) = models.uids("Secret")
    models.delete("Secret", key)
    around.steer(pod_behaviours.by_labels(({names.LABEL_ROLE: "decode"}, pod_behaviours.IGNORED)))
    (decode,) = models.uids("Pod", role="decode")
    before = models.uids("Pod")
    models.delete("Pod", decode)
    eventually(lambda: _is_bound(models, decode, before[decode]), "the next decode pod has a node")
    _wait_for_volumes(models, decode, timedelta(seconds=30))
    eventually(lambda: key in models.uids("Secret"), "the key is there")
    eventually(lambda: f"Secret {key}" in _needs(models), "what it waits for is named")
    after = models.uids("Pod")
    assert {name: uid for name, uid in after.items() if name != decode} == {
        name: uid for name, uid in before.items() if name != decode
    }


def _needs(models: ModelNamespace) -> str:
    """What is said of a decode pod that is not ready."""
    found = models.condition("DecodeReady")
    return str(found["message"]).partition("; it needs ")[2] if found["status"] == "False" else ""


def _is_bound(models: ModelNamespace, name: str, before: str) -> bool:
    found = {each["metadata"]["name"]: each for each in models.objects("Pod")}.get(name, {})
    return bool(found and found["metadata"]["uid"] != before and found["spec"].get("nodeName"))


def _wait_for_volumes(models: ModelNamespace, name: str, since: timedelta) -> None:
    """As a kubelet tells of a pod whose Secret is not there."""
    pod = models.plane.api.get(models.path(kinds.POD, name))
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    entries = [
        {"name": each["name"], "image": each["image"], "imageID": "", "ready": False, "restartCount": 0}
        | {"state": waiting}
        for each in pod["spec"]["containers"]
    ]
    started = (datetime.now(UTC) - since).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"phase": "Pending", "startTime": started, "containerStatuses": entries}
    models.plane.api.merge(f"{models.path(kinds.POD, name)}/status", {"status": status})


# What administrators forbid.


def test_a_quota_is_told_and_waited_for(models: ModelNamespace) -> None:
    quotas = f"/api/v1/namespaces/{models.name}/resourcequotas"
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"count/statefulsets.apps": "1"}}}
    models.plane.api.create(quotas, quota)
    eventually(lambda: models.plane.api.get(f"{quotas}/small").get("status", {}).get("used"), "the quota counts")
    models.create(UNVERIFIED)
    stalled = models.wait_condition("Stalled", "True", "ApplyRefused")
    assert stalled["message"].startswith("StatefulSet/tiny-") and "exceeded quota: small" in stalled["message"]
    told_once(models, "ApplyRefused")
    assert len(models.uids("StatefulSet")) == len(models.uids("Deployment")) == 1
    running = eventually(lambda: models.uids("Pod"), "what can be made runs")
    models.plane.api.merge(f"{quotas}/small", {"spec": {"hard": {"count/statefulsets.apps": "2"}}})
    models.wait_condition("Ready", "True")
    assert running.items() <= models.uids("Pod").items()


def test_an_admission_policy_is_told_in_its_own_words(models: ModelNamespace) -> None:
    models.create(UNVERIFIED)
    models.wait_condition("Ready", "True")
    running = models.uids("Pod")
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["statefulsets"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": models.name}}
    spec = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here},
        "validations": [{"expression": "false", "message": "no workloads on Sundays, says team X"}],
    }
    policy = {"metadata": {"name": models.name}, "spec": spec}
    binding = {
        "metadata": {"name": models.name},
        "spec": {"policyName": models.name, "validationActions": ["Deny"]},
    }
    models.plane.api.create(f"{ADMISSION}/validatingadmissionpolicies", policy)
    models.plane.api.create(f"{ADMISSION}/validatingadmissionpolicybindings", binding)
    try:
        eventually(lambda: _denied(models), "the policy acts")
        models.edit({"engine": {"args": ["--new"]}})
        stalled = models.wait_condition("Stalled", "True", "ApplyRefused")
        assert "no workloads on Sundays, says team X" in stalled["message"]
        told_once(models, "ApplyRefused")
        assert models.uids("Pod") == running
        assert models.condition("Available")["status"] == "True"
    finally:
        models.plane.api.delete(f"{ADMISSION}/validatingadmissionpolicybindings/{models.name}")
        models.plane.api.delete(f"{ADMISSION}/validatingadmissionpolicies/{models.name}")
    eventually(lambda: models.condition("Ready")["status"] == "True", "it goes on by itself")


def _denied(models: ModelNamespace) -> bool:
    """A policy acts some time after it was made."""
    probe = foreign("StatefulSet", "probe")
    try:
        models.plane.api.create(models.path(kinds.STATEFUL_SET), probe, "?dryRun=All")
    except cluster_api.Refused as error:
        return "team X" in str(error)
    return False


def test_a_namespace_that_goes_takes_everything_along(models: ModelNamespace, around: Neighbourhood) -> None:
    models.create({**UNVERIFIED, "prefill.replicas": 2, "router.replicas": 2})
    models.create(UNVERIFIED, "second")
    models.wait_condition("Ready", "True")
    held = foreign("ConfigMap", "held", {"finalizers": ["example.com/held"]})
    models.plane.api.create(models.path(CONFIG_MAP), held)
    models.plane.kubectl("delete", "namespace", models.name, "--wait=false")
    eventually(lambda: not models.plane.api.get(models.path(kinds.MODEL))["items"], "the models are gone")
    eventually(lambda: not models.children() and not models.children("second"), "and their children")
    models.plane.api.merge(models.path(CONFIG_MAP, "held"), {"metadata": {"finalizers": None}})
    place = f"/api/v1/namespaces/{models.name}"
    eventually(lambda: _is_gone(models.plane, place), "and the namespace")
    time.sleep(2.5 * RESYNC_SECONDS)
    # a watch that tells late is taken for deaf until the next look
    eventually(
        lambda: around.operator.get("/healthz")[0] == around.operator.get("/readyz")[0] == 200, "the operator is well"
    )


def _is_gone(plane: planes.ControlPlane, path: str) -> bool:
    try:
        plane.api.get(path)
    except cluster_api.Refused as error:
        return error.code == 404
    return False
