"""What stands in a model's way: it is told once, with what to do; nobody else suffers, and what runs goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import background_kubelet
import cluster_api
import control_plane as planes
import crd_schema
import foreign_objects
import operator_process
import pod_behaviours
from background_kubelet import Steer
from eventually import eventually
from foreign_objects import foreign
from kvferry_operator.api import names
from kvferry_operator.kube import kinds
from model_namespace import ModelNamespace
from operator_process import OperatorProcess

Manifest = dict[str, Any]

RESYNC_SECONDS = 1
UNVERIFIED = {"transfer.verify.required": False}
BUDGETS = {**UNVERIFIED, "prefill.replicas": 2, "router.replicas": 2}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
KINDS = {kind.kind: kind for kind in foreign_objects.KINDS}


@pytest.fixture(scope="module")
def steer(control_plane: planes.ControlPlane) -> Iterator[Steer]:
    """Pods become ready, unless a test says otherwise."""
    with background_kubelet.playing(control_plane.api.access, {"obstacles": {}}) as steer:
        yield steer


@pytest.fixture(scope="module")
def spaces(control_plane: planes.ControlPlane, steer: Steer) -> list[ModelNamespace]:
    """Empty ones, for a test each."""
    return [ModelNamespace(control_plane, "obstacle") for _ in range(8)]


@pytest.fixture(scope="module")
def operator(spaces: list[ModelNamespace]) -> Iterator[OperatorProcess]:
    """One for all namespaces of the module."""
    flags = [f"--resync-seconds={RESYNC_SECONDS}"]
    plane = spaces[0].plane
    with operator_process.running(plane.kubeconfig, *(space.name for space in spaces), flags=flags) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def neighbour(spaces: list[ModelNamespace], operator: OperatorProcess) -> ModelNamespace:
    """The namespace of a model that nothing stands in the way of."""
    space = spaces.pop()
    space.create(UNVERIFIED)
    space.wait_condition("Ready", "True")
    return space


@pytest.fixture
def models(
    spaces: list[ModelNamespace], operator: OperatorProcess, neighbour: ModelNamespace, steer: Steer
) -> Iterator[ModelNamespace]:
    """A namespace of the test's own; the neighbour has the same pods and workloads before and after."""
    before = neighbour.uids("Pod"), neighbour.uids("StatefulSet")
    yield spaces.pop()
    steer(lambda pod: pod_behaviours.READY)
    assert (neighbour.uids("Pod"), neighbour.uids("StatefulSet")) == before
    assert neighbour.condition("Ready")["status"] == "True"
    assert operator.exit_code is None
    assert not [line for line in operator.lines if "nobody foresaw" in str(line.get("msg"))]


def told_once(models: ModelNamespace, reason: str, name: str = "tiny") -> Manifest:
    """The Event with that reason, of which resyncs and retries make no second one."""
    time.sleep(3.5 * RESYNC_SECONDS)
    (event,) = models.events(name, reason)
    return event


# Foreign objects.


def test_foreign_objects_with_our_names_are_left_alone(models: ModelNamespace) -> None:
    models.create(BUDGETS)
    places = sorted(models.wait_children())
    assert {kind for kind, _ in places} == set(KINDS)
    models.plane.kubectl("delete", "dm", "tiny", "-n", models.name)
    eventually(lambda: not models.children(), "the names are free")
    theirs = {place: models.plane.api.create(models.path(KINDS[place[0]]), foreign(*place)) for place in places}

    models.create(BUDGETS)
    stalled = models.wait_condition("Stalled", "True", "NameConflict")
    assert "is not ours: delete or rename it, or give this object another name" in stalled["message"]
    told = told_once(models, "NameConflict")
    assert told["type"] == "Warning" and told["note"].endswith(stalled["message"])
    for (kind, name), made in theirs.items():
        now = models.plane.api.get(models.path(KINDS[kind], name))
        assert now["metadata"]["uid"] == made["metadata"]["uid"]
        assert untouched(now), (kind, name)
    assert models.children() == {}

    # the key's Secret as well: the operator may not look into it, and so cannot tell whose it is
    for kind, name in sorted(theirs, key=lambda place: place[0] != "Secret"):
        models.delete(kind, name)
    models.wait_condition("Ready", "True")
    assert set(models.children()) == set(places)


def test_foreign_objects_with_our_labels_are_neither_removed_nor_counted(models: ModelNamespace, steer: Steer) -> None:
    """Case 6."""
    models.create(UNVERIFIED)
    models.wait_condition("Ready", "True")
    models.wait_quiet()
    before = models.model()["status"]
    labels = models.objects("StatefulSet")[0]["metadata"]["labels"]
    boss = models.plane.api.create(models.path(KINDS["ConfigMap"]), foreign("ConfigMap", "boss"))
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "boss", "uid": boss["metadata"]["uid"]}
    made = []
    for kind in foreign_objects.KINDS:
        for name, owners in (("nobodys", []), ("somebodys", [{**owner, "controller": True}])):
            metadata = {"labels": labels, "ownerReferences": owners}
            made.append((kind, models.plane.api.create(models.path(kind), foreign(kind.kind, name, metadata))))
    steer(lambda pod: pod_behaviours.UNREADY if pod["metadata"]["name"] == "stray" else pod_behaviours.READY)
    pod = {"metadata": {"name": "stray", "labels": labels}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    made.append((kinds.POD, models.plane.api.create(models.path(kinds.POD), pod)))

    time.sleep(3.5 * RESYNC_SECONDS)
    for kind, each in made:
        now = models.plane.api.get(models.path(kind, each["metadata"]["name"]))
        assert now["metadata"]["uid"] == each["metadata"]["uid"] and "deletionTimestamp" not in now["metadata"]
        assert untouched(now), (kind, each["metadata"]["name"])
    assert models.model()["status"] == before


def untouched(manifest: Manifest) -> bool:
    """Whether none of the operator's field managers ever wrote it."""
    return not any(entry["manager"].startswith(names.MANAGER) for entry in manifest["metadata"].get("managedFields", ()))


# Secrets.


def test_a_missing_token_is_named(models: ModelNamespace, steer: Steer) -> None:
    lacks = pod_behaviours.waiting("CreateContainerConfigError", 'secret "hub-token" not found', "engine")
    steer(pod_behaviours.by_labels(({names.LABEL_MODEL: "gated", names.LABEL_ROLE: "prefill"}, lacks)))
    models.create({**UNVERIFIED, "model.tokenSecretRef": {"name": "hub-token"}}, "gated")
    stalled = models.wait_condition("Stalled", "True", "CreateContainerConfigError", "gated")
    assert 'container engine cannot be made: secret "hub-token" not found' in stalled["message"]
    assert models.condition("PrefillReady", "gated")["reason"] == "CreateContainerConfigError"
    assert 'secret "hub-token" not found' in told_once(models, "CreateContainerConfigError", "gated")["note"]
    assert models.condition("DecodeReady", "gated")["status"] == "True"
    running = models.uids("Pod", "gated")
    steer(lambda pod: pod_behaviours.READY)
    models.wait_condition("Ready", "True", name="gated")
    assert models.uids("Pod", "gated") == running


def test_a_deleted_key_comes_back_when_a_pod_waits_for_it(models: ModelNamespace, steer: Steer) -> None:
    models.create(UNVERIFIED)
    models.wait_condition("Ready", "True")
    (key,) = models.uids("Secret")
    models.delete("Secret", key)
    steer(pod_behaviours.by_labels(({names.LABEL_ROLE: "decode"}, pod_behaviours.IGNORED)))
    (decode,) = models.uids("Pod", role="decode")
    before = models.uids("Pod")
    models.delete("Pod", decode)
    eventually(lambda: _is_bound(models, decode, before[decode]), "the next decode pod has a node")
    _wait_for_volumes(models, decode, timedelta(seconds=30))
    eventually(lambda: key in models.uids("Secret"), "the key is there")
    message = models.wait_condition("DecodeReady", "False")["message"]
    assert "; it needs " in message and f"Secret {key}" in message
    after = models.uids("Pod")
    assert {name: uid for name, uid in after.items() if name != decode} == {
        name: uid for name, uid in before.items() if name != decode
    }


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
    eventually(lambda: models.condition("Ready")["status"] == "True", "it goes on by itself", 60)


def _denied(models: ModelNamespace) -> bool:
    """A policy acts some time after it was made."""
    probe = foreign("StatefulSet", "probe")
    try:
        models.plane.api.create(models.path(kinds.STATEFUL_SET), probe, "?dryRun=All")
    except cluster_api.Refused as error:
        return "team X" in str(error)
    return False


def test_a_namespace_that_goes_takes_everything_along(models: ModelNamespace, operator: OperatorProcess) -> None:
    models.create(BUDGETS)
    models.create(UNVERIFIED, "second")
    models.wait_condition("Ready", "True")
    held = foreign("ConfigMap", "held", {"finalizers": ["example.com/held"]})
    models.plane.api.create(models.path(KINDS["ConfigMap"]), held)
    models.plane.kubectl("delete", "namespace", models.name, "--wait=false")
    eventually(lambda: not models.plane.api.get(models.path(kinds.MODEL))["items"], "the models are gone", 60)
    eventually(lambda: not models.children() and not models.children("second"), "and their children", 60)
    models.plane.api.merge(models.path(KINDS["ConfigMap"], "held"), {"metadata": {"finalizers": None}})
    place = f"/api/v1/namespaces/{models.name}"
    eventually(lambda: _is_gone(models.plane, place), "and the namespace", 60)
    time.sleep(2.5 * RESYNC_SECONDS)
    assert operator.get("/healthz")[0] == operator.get("/readyz")[0] == 200


def _is_gone(plane: planes.ControlPlane, path: str) -> bool:
    try:
        plane.api.get(path)
    except cluster_api.Refused as error:
        return error.code == 404
    return False


# What the operator may not, or the API server does not know.


def test_a_rule_that_is_taken_away_is_named_until_it_is_back(
    control_plane: planes.ControlPlane, steer: Steer
) -> None:
    """Case 48."""
    models = ModelNamespace(control_plane, "rule")
    role = Role(models)
    with operator_process.running(models.kubeconfig, models.name, flags=[f"--resync-seconds={RESYNC_SECONDS}"]) as run:
        run.wait_ready()
        models.create({**UNVERIFIED, "transfer.verify.intervalSeconds": 5})
        models.wait_condition("Ready", "True")
        running = models.uids("Pod")

        role.without("networkpolicies", "patch")
        models.create(UNVERIFIED, "second")
        stalled = models.wait_condition("Stalled", "True", "Forbidden", "second")
        assert stalled["message"].startswith("NetworkPolicy/second-groups: ")
        assert 'resources: ["networkpolicies"], verbs: ["patch"]' in stalled["message"]
        assert "add it to its role" in stalled["message"]
        told_once(models, "Forbidden", "second")
        assert models.uids("Deployment", "second") and len(models.uids("StatefulSet", "second")) == 2
        assert models.condition("Ready")["status"] == "True" and models.uids("Pod") == running

        role.without("pods/proxy", "get")
        unknown = eventually(lambda: _says(models, "TransferVerified", 'resources: ["pods/proxy"]'), "it is named")
        assert (unknown["status"], unknown["reason"]) == ("Unknown", "RouterUnreachable")

        role.complete()
        models.wait_condition("Ready", "True", name="second")
        eventually(lambda: not _says(models, "TransferVerified", "pods/proxy"), "the router can be asked")
        assert run.exit_code is None


def _says(models: ModelNamespace, kind: str, text: str) -> Manifest:
    found = models.condition(kind)
    return found if text in found["message"] else {}


class Role:
    """The operator's rights in a namespace, one rule for each kind, instead of all rights."""

    def __init__(self, models: ModelNamespace) -> None:
        self._api = models.plane.api
        self._path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{models.name}/roles"
        bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{models.name}/rolebindings"
        self._api.create(self._path, {"metadata": {"name": "least"}, "rules": self._rules()})
        self._api.delete(f"{bindings}/operator")
        binding = {
            "metadata": {"name": "operator"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "least"},
            "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": models.name}],
        }
        self._api.create(bindings, binding)

    def without(self, resource: str, verb: str) -> None:
        """From now on."""
        self._write([_less(rule, verb) if rule["resources"] == [resource] else rule for rule in self._rules()])

    def complete(self) -> None:
        self._write(self._rules())

    def _write(self, rules: list[Manifest]) -> None:
        self._api.merge(f"{self._path}/least", {"rules": rules})

    @staticmethod
    def _rules() -> list[Manifest]:
        verbs = ["get", "list", "watch", "create", "patch", "delete"]
        return [
            *(_rule(kind.group, kind.plural, verbs) for kind in (*kinds.CHILDREN, kinds.MODEL, kinds.POD)),
            _rule(kinds.MODEL.group, "disaggregatedmodels/status", ["patch"]),
            _rule("apps", "statefulsets/scale", ["patch"]),
            _rule("", "secrets", ["create"]),
            _rule("", "pods/proxy", ["get"]),
            _rule("events.k8s.io", "events", ["create"]),
            _rule("discovery.k8s.io", "endpointslices", ["get", "list", "watch"]),
        ]


def _rule(group: str, resource: str, verbs: list[str]) -> Manifest:
    return {"apiGroups": [group], "resources": [resource], "verbs": verbs}


def _less(rule: Manifest, verb: str) -> Manifest:
    left = [each for each in rule["verbs"] if each != verb]
    return {**rule, "verbs": left or ["none"]}


def test_an_api_that_is_switched_off_stops_only_what_needs_it() -> None:
    with planes.start(manifests=[crd_schema.crd()], switched_off=["policy/v1"]) as plane:
        models = ModelNamespace(plane, "bare")
        flags = [f"--resync-seconds={RESYNC_SECONDS}"]
        with (
            background_kubelet.playing(plane.api.access, {"bare": {}}),
            operator_process.running(models.kubeconfig, models.name, flags=flags) as operator,
        ):
            operator.wait_ready()
            models.create(UNVERIFIED)
            models.create(BUDGETS, "budgets")
            models.wait_condition("Ready", "True")
            stalled = models.wait_condition("Stalled", "True", "ApplyRefused", "budgets")
            assert "serves no poddisruptionbudgets of policy/v1" in stalled["message"]
            told_once(models, "ApplyRefused", "budgets")
            eventually(lambda: models.condition("Available", "budgets")["status"] == "True", "all else is there")
            said = [line for line in operator.lines if "poddisruptionbudgets of policy/v1" in str(line.get("msg"))]
            assert [line["logger"] for line in said].count("kvferry_operator.resync") == 1
