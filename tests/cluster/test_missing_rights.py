"""What the operator may not do, or the API server does not know: it is named, and all the rest is done."""

from __future__ import annotations

from typing import Any

import background_kubelet
import control_plane as planes
import crd_schema
import foreign_objects
import operator_process
from eventually import eventually
from kvferry_operator.kube import kinds
from model_namespace import ModelNamespace
from neighbourhood import RESYNC_SECONDS, UNVERIFIED, told_once

Manifest = dict[str, Any]

FLAGS = [f"--resync-seconds={RESYNC_SECONDS}"]


def test_a_rule_that_is_taken_away_is_named_until_it_is_back(control_plane: planes.ControlPlane) -> None:
    """Case 48."""
    models = ModelNamespace(control_plane, "rule")
    role = Role(models)
    with (
        background_kubelet.playing(control_plane.api.access, {"rule": {}}),
        operator_process.running(models.kubeconfig, models.name, flags=FLAGS) as operator,
    ):
        operator.wait_ready()
        models.create({**UNVERIFIED, "transfer.verify.intervalSeconds": 5})
        models.wait_condition("Ready", "True")
        running = models.uids("Pod")

        role.without("networkpolicies", "create")
        models.create(UNVERIFIED, "second")
        stalled = models.wait_condition("Stalled", "True", "Forbidden", "second")
        assert stalled["message"].startswith("NetworkPolicy/second-groups: ")
        assert 'resources: ["networkpolicies"], verbs: ["create"]' in stalled["message"]
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
        assert operator.exit_code is None


def test_a_namespace_that_may_not_be_read_stops_no_other(control_plane: planes.ControlPlane) -> None:
    open_, closed = ModelNamespace(control_plane, "open"), ModelNamespace(control_plane, "closed")
    with operator_process.running(open_.kubeconfig, open_.name, closed.name, flags=FLAGS) as operator:
        operator.wait_ready()
        said = operator.get("/readyz")[1]
        assert f"in namespace {closed.name}; add it to its role" in said
        open_.create()
        open_.wait_children()
        binding = {
            "metadata": {"name": "given"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": open_.name}],
        }
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{closed.name}/rolebindings"
        control_plane.api.create(path, binding)
        assert operator.wait_end() == 1, "it asks to be started anew"
        assert f"the namespace {closed.name} can be read by now" in operator.lines[-1]["msg"]
    with operator_process.running(open_.kubeconfig, open_.name, closed.name, flags=FLAGS):
        closed.create()
        closed.wait_children()


def _says(models: ModelNamespace, kind: str, text: str) -> Manifest:
    found = models.condition(kind)
    return found if text in found.get("message", "") else {}


class Role:
    """The operator's rights in a namespace, one rule for each kind, instead of all rights."""

    def __init__(self, models: ModelNamespace) -> None:
        self._api = models.plane.api
        self._models = models
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
        """From now on: the authorizer hears of a change a moment after it was made."""
        self._write([_less(rule, verb) if rule["resources"] == [resource] else rule for rule in self._rules()])
        (group,) = (rule["apiGroups"][0] for rule in self._rules() if rule["resources"] == [resource])
        eventually(lambda: not self._has(group, resource, verb), f"{verb} {resource} is taken away")

    def complete(self) -> None:
        self._write(self._rules())

    def _has(self, group: str, resource: str, verb: str) -> bool:
        plural, _, part = resource.partition("/")
        asked = {"namespace": self._models.name, "verb": verb, "group": group, "resource": plural, "subresource": part}
        review = {"spec": {"user": self._models.account, "resourceAttributes": asked}}
        answer = self._api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

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
    """Without it Kubernetes' own scheduler does not begin, so that no pod is placed here."""
    with planes.start(manifests=[crd_schema.crd()], switched_off=["policy/v1"]) as plane:
        models = ModelNamespace(plane, "bare")
        with operator_process.running(models.kubeconfig, models.name, flags=FLAGS) as operator:
            operator.wait_ready()
            models.create(UNVERIFIED)
            models.create({**UNVERIFIED, "router.replicas": 2}, "budgets")
            stalled = models.wait_condition("Stalled", "True", "ApplyRefused", "budgets")
            assert "serves no poddisruptionbudgets of policy/v1" in stalled["message"]
            told_once(models, "ApplyRefused", "budgets")
            models.wait_condition("Stalled", "False")
            for name in ("tiny", "budgets"):
                made = [kind.kind for kind in foreign_objects.KINDS if kind.kind != "PodDisruptionBudget"]
                assert all(models.uids(kind, name) for kind in made)
            said = [line for line in operator.lines if "poddisruptionbudgets of policy/v1" in str(line.get("msg"))]
            assert len([line for line in said if line["logger"] == "kvferry_operator.view.resync"]) == 1
