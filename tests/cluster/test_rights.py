"""The operator under its own account, with the chart's rules and nothing else, does everything that it ever does.

What the API server wrote down of it must be the rules themselves: one that is missing stops it, one that is too many
is a danger for nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

import background_kubelet
import control_plane as planes
import crd_schema
import helm_chart
import operator_process
from audit_log import Request
from eventually import eventually
from foreign_objects import foreign
from helm_chart import Chart, Rule
from kvferry_operator.api import names
from kvferry_operator.kube import kinds
from model_namespace import ModelNamespace
from operator_process import OperatorProcess

Manifest = dict[str, Any]

ACCOUNT = "kvferry-operator"
USER = f"system:serviceaccount:{helm_chart.NAMESPACE}:{ACCOUNT}"
NODES = Rule("", "", "nodes", "list")
DEVICES = {"mode": "devicePlugin", "resourceName": "rdma/hca"}


@dataclass(frozen=True)
class Installation:
    """What the chart makes for one namespace, or for all. flags: of the operator."""

    models: ModelNamespace
    objects: list[Manifest]
    flags: list[str]

    @property
    def plane(self) -> planes.ControlPlane:
        return self.models.plane

    @property
    def rules(self) -> set[Rule]:
        return helm_chart.granted(self.objects, ACCOUNT)


@pytest.fixture(scope="module")
def plane() -> Iterator[planes.ControlPlane]:
    """One of its own, in which an operator for all namespaces meets no other tests' models."""
    with planes.start(manifests=[crd_schema.crd()]) as started:
        if started.missing:
            pytest.skip(f"no {' and no '.join(started.missing)}: unset KUBEBUILDER_ASSETS to have them built")
        started.api.create("/api/v1/namespaces", {"metadata": {"name": helm_chart.NAMESPACE}})
        with background_kubelet.playing(started.api.access, {"rights": {"rdma/hca": "8"}}):
            yield started


@pytest.fixture(params=["cluster-wide", "namespaced"])
def installation(request: pytest.FixtureRequest, plane: planes.ControlPlane) -> Iterator[Installation]:
    models = ModelNamespace(plane, "rights")
    values = {"namespaces": [models.name]} if request.param == "namespaced" else {}
    objects = Chart(helm_chart.helm()).objects(values)
    operator = helm_chart.one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    flags = [flag for flag in operator["args"] if not flag.startswith("--http-port")]
    roles = yaml.safe_dump_all(each for each in objects if each["apiVersion"].startswith("rbac."))
    plane.kubectl("apply", "-f", "-", stdin=roles)
    try:
        yield Installation(models, objects, flags)
    finally:
        plane.kubectl("delete", "-f", "-", stdin=roles)
        plane.kubectl("delete", "lease", "--all", "-n", helm_chart.NAMESPACE)


def test_what_it_does_is_what_it_may_do(installation: Installation) -> None:
    """Case 48."""
    rules = installation.rules
    assert not [rule for rule in rules if "*" in (rule.group, rule.resource, rule.verb)]
    assert {rule.verb for rule in rules if rule.resource == "secrets"} == {"create"}
    everywhere = NODES in rules
    assert everywhere == any(each["kind"].startswith("ClusterRole") for each in installation.objects)
    eventually(lambda: _all_granted(installation), "the rules are in force")

    mark = installation.plane.audit_position()
    handed_on = live_a_whole_life(installation)
    requests = [each for each in installation.plane.audit(mark, USER) if each.resource]

    # it cannot know beforehand that it may not list nodes, and says so in FabricReady
    assert _refused(requests) == (set() if everywhere else {NODES})
    used = set(_used(requests, rules))
    assert used | handed_on == rules, "more rules than calls: " + str(rules - used - handed_on)
    assert not used & handed_on, "what is handed on needs no excuse where it is used as well"


def live_a_whole_life(installation: Installation) -> set[Rule]:
    """A model comes, changes in every way that costs the operator another kind of call, and goes.

    Returns:
        the rules of the roles that the operator made for others.
    """
    models = installation.models
    with _two_replicas(installation) as (first, second):
        models.create(
            {
                "prefill.replicas": 2,
                "prefill.rdma": DEVICES,
                "prefill.parallelism": {"pipeline": 2},
                "decode.replicas": 2,
                "router.replicas": 2,
                "transfer.verify.required": False,
            }
        )
        models.wait_condition("Ready", "True")
        # asked for their reports, the routers do not answer: no container runs
        models.wait_condition("TransferVerified", "Unknown", "RouterUnreachable")
        reason = "Pending" if NODES in installation.rules else "NodesNotReadable"
        models.wait_condition("FabricReady", "Unknown", reason)
        handed_on = set(_handed_on(installation))
        _lose_a_stage(models)
        _leave_from_an_earlier_release(models)
        _take_labels_off(models)

        old = models.uids("StatefulSet")
        models.edit({"engine": {"args": ["--new"]}})
        eventually(lambda: not old.keys() & models.uids("StatefulSet").keys(), "the old revision is gone")
        models.wait_condition("Ready", "True")

        models.edit({"decode": {"scaling": {"mode": "External"}}})
        eventually(lambda: _is_handed_over(models), "the autoscaler has the number of decode groups")

        standby = second if _leads(first) else first
        (first if standby is second else second).stop()
        eventually(lambda: _leads(standby), "the other replica takes over")
        models.edit({"mode": "Aggregated", "prefill": None, "security": {"networkPolicy": False}})
        models.edit({"decode": {"replicas": 1, "scaling": {"mode": "Static"}}, "router": {"replicas": 1}})
        for kind in ("NetworkPolicy", "PodDisruptionBudget"):
            eventually(lambda: not models.uids(kind), f"no {kind} is left")  # noqa: B023
        eventually(lambda: len(models.uids("StatefulSet")) == 1, "decode alone is left")
        models.wait_condition("Ready", "True")

        models.plane.kubectl("delete", "dm", "tiny", "-n", models.name)
        eventually(lambda: not models.children(), "nothing is left")
        assert standby.stop() == 0
    return handed_on


@contextlib.contextmanager
def _two_replicas(installation: Installation) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    kubeconfig = installation.plane.service_account_kubeconfig(helm_chart.NAMESPACE, ACCOUNT)
    with (
        operator_process.running(kubeconfig, flags=installation.flags) as first,
        operator_process.running(kubeconfig, flags=installation.flags) as second,
    ):
        first.wait_ready()
        second.wait_ready()
        eventually(lambda: _leads(first) + _leads(second) == 1, "one of them leads")
        yield first, second


def _leads(operator: OperatorProcess) -> bool:
    return operator.metric("kvferry_operator_leader") == 1


def _is_handed_over(models: ModelNamespace) -> bool:
    sets = models.objects("StatefulSet")
    return any(each["metadata"]["annotations"].get(names.ANNOTATION_GROUPS) == "External" for each in sets)


def _lose_a_stage(models: ModelNamespace) -> None:
    """The operator deletes what is left of its group."""
    eventually(lambda: _are_noted(models), "that groups are whole is written when they are")
    pods = models.uids("Pod", role="prefill")
    lost, left = (next(name for name in pods if name.endswith(f"-s{stage}-0")) for stage in (1, 0))
    models.delete("Pod", lost)
    eventually(lambda: models.uids("Pod").get(left) not in (None, pods[left]), "the other stage is another pod")
    models.wait_condition("Ready", "True")


def _are_noted(models: ModelNamespace) -> bool:
    return any(names.ANNOTATION_LIVES in each["metadata"]["annotations"] for each in models.objects("StatefulSet"))


def _leave_from_an_earlier_release(models: ModelNamespace) -> None:
    """Children that this release would not make, of the kinds that a model of this release always has."""
    account = models.objects("ServiceAccount")[0]["metadata"]
    ours = {"labels": account["labels"], "ownerReferences": account["ownerReferences"]}
    always = ("ServiceAccount", "Role", "RoleBinding", "Deployment")
    for kind in (kind for kind in kinds.CHILDREN if kind.kind in always):
        models.plane.api.create(models.path(kind), foreign(kind.kind, "left", ours))
        eventually(lambda: "left" not in models.uids(kind.kind), f"the {kind.kind} is pruned")  # noqa: B023


def _take_labels_off(models: ModelNamespace) -> None:
    """What somebody changed of a child is set right, whatever its kind."""
    for kind in kinds.CHILDREN:
        for name in models.uids(kind.kind):
            models.plane.api.merge(models.path(kind, name), {"metadata": {"labels": {names.APP_PART_OF: None}}})
    for kind in kinds.CHILDREN:
        eventually(lambda: all(map(_is_labelled, models.objects(kind.kind))), f"labels of each {kind.kind}")  # noqa: B023


def _is_labelled(manifest: Manifest) -> bool:
    return names.APP_PART_OF in manifest["metadata"]["labels"]


def _used(requests: Iterable[Request], rules: set[Rule]) -> Iterator[Rule]:
    """The rules that granted requests needed, each the narrowest that there is for it."""
    for request in requests:
        if not request.granted:
            continue
        resource = _resource(request)
        # a server-side apply is written down as `patch`, and needs `create` too where it makes the object
        verbs = {request.verb, *(["create"] if (request.verb, request.code) == ("patch", 201) else [])}
        for verb in verbs:
            here = Rule(request.namespace, request.group, resource, verb)
            yield here if here in rules else Rule("", request.group, resource, verb)


def _handed_on(installation: Installation) -> Iterator[Rule]:
    """What the Roles that the operator made say. Nobody can hand on a right without having it, so that the operator
    holds these without a call of its own."""
    place = "" if NODES in installation.rules else installation.models.name
    for role in installation.models.objects("Role"):
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    yield from (Rule(place, group, resource, verb) for verb in rule["verbs"])


def _refused(requests: Iterable[Request]) -> set[Rule]:
    return {Rule(each.namespace, each.group, _resource(each), each.verb) for each in requests if not each.granted}


def _resource(request: Request) -> str:
    return f"{request.resource}/{request.subresource}" if request.subresource else request.resource


def _all_granted(installation: Installation) -> bool:
    """The authorizer hears of a new role a moment after it was made."""
    return all(_may(installation.plane, rule) for rule in installation.rules)


def _may(plane: planes.ControlPlane, rule: Rule) -> bool:
    resource, _, subresource = rule.resource.partition("/")
    asked = {
        "namespace": rule.namespace,
        "verb": rule.verb,
        "group": rule.group,
        "resource": resource,
        "subresource": subresource,
        "name": ACCOUNT if resource == "leases" and rule.verb != "create" else "",
    }
    review = {"spec": {"user": USER, "resourceAttributes": asked}}
    answer = plane.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])
