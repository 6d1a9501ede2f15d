"""Who says how many groups there are, and within which bounds."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crd_schema
from builders import raw
from kvferry_contract.config import Role
from kvferry_operator.api import names
from kvferry_operator.api.types import Ratio
from kvferry_operator.plan.rollout import Step
from kvferry_operator.plan.scaling import ratio_bounds
from simulated_cluster import SimulatedCluster

PREFILL, DECODE = Role.PREFILL, Role.DECODE
EXTERNAL = {"mode": "External"}


def installed(changes: dict[str, Any]) -> SimulatedCluster:
    cluster = SimulatedCluster(raw(changes))
    cluster.settle()
    return cluster


def autoscale(cluster: SimulatedCluster, role: str, replicas: int) -> None:
    """As an autoscaler of the first stage would."""
    for workload in cluster.workloads():
        labels = workload["metadata"]["labels"]
        if labels[names.LABEL_ROLE] == role and labels[names.LABEL_STAGE] == "0":
            workload["spec"]["replicas"] = replicas


def replicas_in(step: Step, role: str) -> list[Any]:
    sets = [each for each in step.objects if each["kind"] == "StatefulSet"]
    return [each["spec"].get("replicas") for each in sets if f"-{role}-" in each["metadata"]["name"]]


def test_an_autoscalers_number_is_left_alone() -> None:
    """Case 10, on."""
    cluster = installed({"decode.replicas": 2, "decode.scaling": EXTERNAL})
    autoscale(cluster, "decode", 4)
    for _ in range(20):
        step = cluster.plan()
        assert replicas_in(step, "decode") == [None] and not step.scales
        cluster.do(step)
    assert cluster.plan().groups[DECODE] == 4 and replicas_in(step, "prefill") == [1]


def test_the_objects_number_comes_back_when_nobody_else_may_scale() -> None:
    """Case 10, off."""
    cluster = installed({"decode.replicas": 2})
    autoscale(cluster, "decode", 4)
    assert cluster.do(cluster.plan()) and not cluster.do(cluster.plan())
    assert cluster.by_revision(DECODE)[cluster.plan().revisions.update].declared == 2


def test_a_rollout_keeps_what_the_autoscaler_chose() -> None:
    scaled = {"decode.replicas": 1, "decode.scaling": EXTERNAL}
    cluster = installed(scaled)
    autoscale(cluster, "decode", 5)
    cluster.settle()
    for restart in ("a", "b"):
        cluster.raw = raw(scaled | {"restartID": restart})
        for _ in range(4):
            cluster.do(cluster.plan())
            assert cluster.plan().groups[DECODE] == 5
    cluster.settle()
    assert cluster.serving(DECODE) == 5 and replicas_in(cluster.plan(), "decode") == [None]


def test_going_back_in_the_middle_of_a_rollout_keeps_it_too() -> None:
    scaled = {"decode.replicas": 1, "decode.scaling": EXTERNAL}
    cluster = installed(scaled)
    autoscale(cluster, "decode", 5)
    cluster.settle()
    cluster.raw = raw(scaled | {"restartID": "a"})
    while cluster.fleet.cohort(DECODE, cluster.plan().revisions.update).ready < 3:
        cluster.do(cluster.plan())
        cluster.move(Random(0), 1.0)
    cluster.raw = raw(scaled)
    cluster.settle()
    assert cluster.serving(DECODE) == 5 and replicas_in(cluster.plan(), "decode") == [None]


def test_a_revision_that_could_not_be_removed_says_nothing() -> None:
    """Whatever its name: the newest workload counts."""
    scaled = {"decode.replicas": 1, "decode.scaling": EXTERNAL}
    for restart in ("a", "b", "c"):
        cluster = installed(scaled)
        autoscale(cluster, "decode", 5)
        old = {key: child for key, child in cluster.children.items() if child["kind"] == "StatefulSet"}
        cluster.raw = raw(scaled | {"restartID": restart})
        cluster.settle()
        cluster.children |= old
        assert cluster.plan().groups[DECODE] == 5


@pytest.mark.parametrize(
    ("chosen", "scaling", "ratio", "expected"),
    [
        ((6, 4), {}, {}, (6, 4)),
        ((6, 4), {"max": 3}, {}, (3, 4)),
        ((0, 4), {"min": 2}, {}, (2, 4)),
        ((9, 4), {}, {"max": "1.5"}, (6, 4)),
        ((1, 4), {}, {"min": "0.5"}, (2, 4)),
        ((1, 3), {}, {"min": "0.5", "max": "0.5"}, (2, 3)),
        ((1, 30), {}, {"min": "0.1"}, (3, 30)),
        ((5, 4), {"max": 1}, {"min": "2"}, (1, 4)),
        ((3, 0), {}, {"max": "2"}, (0, 0)),
    ],
)
def test_bounds_and_ratio_clamp_what_an_autoscaler_chose(
    chosen: tuple[int, int], scaling: dict[str, Any], ratio: dict[str, str], expected: tuple[int, int]
) -> None:
    both = {"prefill.scaling": EXTERNAL | scaling, "decode.scaling": EXTERNAL, "ratio": ratio}
    cluster = installed(both)
    for role, number in zip(("prefill", "decode"), chosen, strict=True):
        autoscale(cluster, role, number)
    step = cluster.plan()
    assert (step.groups[PREFILL], step.groups[DECODE]) == expected
    assert [scale.replicas for scale in step.scales] == [
        new for old, new in zip(chosen, expected, strict=True) if old != new
    ]


def test_decode_follows_a_prefill_that_nobody_scales() -> None:
    cluster = installed({"prefill.replicas": 4, "decode.scaling": EXTERNAL, "ratio": {"min": "0.5", "max": "2"}})
    for chosen, expected in ((1, 2), (5, 5), (20, 8)):
        autoscale(cluster, "decode", chosen)
        assert cluster.plan().groups == {PREFILL: 4, DECODE: expected}


def test_the_ratio_moves_no_number_that_the_object_states() -> None:
    cluster = installed({"prefill.replicas": 4, "decode.replicas": 1, "ratio": {"max": "1"}})
    assert cluster.plan().groups == {PREFILL: 4, DECODE: 1}


@given(st.integers(0, 200), st.tuples(st.integers(0, 400), st.integers(0, 400)))
def test_bounds_of_a_ratio_are_never_empty_and_never_starve_a_role(decode: int, bounds: tuple[int, int]) -> None:
    low, high = sorted(bounds)
    least, most = ratio_bounds(Ratio(min=low / 100, max=high / 100), decode)
    assert least <= most
    assert (least >= 1) == (decode > 0)


def test_the_scale_subresource_counts_what_its_selector_picks() -> None:
    """Case 11."""
    scale = crd_schema.crd()["spec"]["versions"][0]["subresources"]["scale"]
    assert scale["specReplicasPath"] == ".spec.decode.replicas" and scale["labelSelectorPath"].startswith(".status.")
    cluster = installed({"decode.replicas": 2, "decode.parallelism": {"pipeline": 2}})
    wanted = dict(part.split("=") for part in names.scale_selector("tiny").split(",")).items()
    picked = [name for name, pod in cluster.pods.items() if wanted <= pod["metadata"]["labels"].items()]
    assert len(picked) == 2 and all("-decode-" in name and "-s0-" in name for name in picked)
