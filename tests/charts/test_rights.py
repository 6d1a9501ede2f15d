"""The operator's rights: least, and complete for what it makes."""

from __future__ import annotations

from typing import Any

import pytest

import builders
import helm_chart
from helm_chart import Chart, Rule, granted, one
from kvferry_operator import act
from kvferry_operator.desired import router
from kvferry_operator.kube import kinds

ACCOUNT = "kvferry-operator"
MODES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "cluster-wide": ({}, {""}),
    "namespaced": ({"namespaces": ["team-a", "team-b"]}, {"team-a", "team-b"}),
}


@pytest.mark.parametrize("mode", MODES)
def test_no_wildcard_and_no_reading_of_secrets(chart: Chart, mode: str) -> None:
    """Case 48."""
    for rule in granted(chart.objects(MODES[mode][0]), ACCOUNT):
        assert "*" not in (rule.group, rule.resource, rule.verb)
        assert rule.resource != "secrets" or rule.verb == "create"


@pytest.mark.parametrize("mode", MODES)
def test_what_a_model_is_made_of_can_be_kept(chart: Chart, mode: str) -> None:
    """Case 48: for every kind of child, what apply, prune, list and watch need, and nothing else."""
    values, places = MODES[mode]
    rules = granted(chart.objects(values), ACCOUNT)
    for kind in kinds.CHILDREN:
        for place in places:
            verbs = {rule.verb for rule in rules if (rule.namespace, rule.resource) == (place, kind.plural)}
            assert verbs == {"get", "list", "watch", "create", "patch", "delete"}, kind.plural
            groups = {rule.group for rule in rules if rule.resource == kind.plural}
            assert groups == {kind.group}


@pytest.mark.parametrize("mode", MODES)
def test_what_is_handed_on_is_held(chart: Chart, mode: str) -> None:
    """The API server refuses a Role with rights that its maker lacks."""
    values, places = MODES[mode]
    rules = granted(chart.objects(values), ACCOUNT)
    role = next(each for each in router.access(builders.model()) if each["kind"] == "Role")
    for rule in role["rules"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for place in places:
                    assert Rule(place, rule["apiGroups"][0], resource, verb) in rules


def test_a_list_of_namespaces_makes_no_cluster_role(chart: Chart) -> None:
    """Case 48."""
    objects = chart.objects(MODES["namespaced"][0])
    assert not [each for each in objects if each["kind"].startswith("ClusterRole")]
    places = {rule.namespace for rule in granted(objects, ACCOUNT) if rule.resource != "leases"}
    assert places == {"team-a", "team-b"}


def test_leases_are_written_in_the_namespace_of_the_release_alone(chart: Chart) -> None:
    for values, _ in MODES.values():
        leases = {rule for rule in granted(chart.objects(values), ACCOUNT) if rule.resource == "leases"}
        assert {rule.namespace for rule in leases} == {helm_chart.NAMESPACE}
        assert {rule.verb for rule in leases} == {"get", "create", "update"}


def test_only_the_lease_of_the_operator_can_be_changed(chart: Chart) -> None:
    rules = one(chart.objects(), "Role", "kvferry-operator-lease")["rules"]
    names = {verb: rule.get("resourceNames") for rule in rules for verb in rule["verbs"]}
    # a name cannot be asked for at creation: the object has none yet
    assert names == {"create": None, "get": [act.LEASE], "update": [act.LEASE]}


def test_the_namespaces_are_those_that_the_operator_is_told(chart: Chart) -> None:
    deployment = one(chart.objects(MODES["namespaced"][0]), "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [each for each in arguments if each.startswith("--namespace")] == [
        "--namespace=team-a",
        "--namespace=team-b",
    ]


def test_editors_may_do_what_viewers_may_not(chart: Chart) -> None:
    objects = chart.objects()
    viewer, editor = one(objects, "ClusterRole", "kvferry-viewer"), one(objects, "ClusterRole", "kvferry-editor")
    assert viewer["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert editor["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert {verb for rule in viewer["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    # status is the operator's to write
    assert all("disaggregatedmodels/status" not in rule["resources"] for rule in editor["rules"])
    assert not [each for each in chart.objects({"rbac": {"aggregate": False}}) if "viewer" in each["metadata"]["name"]]
