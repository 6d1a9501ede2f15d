"""Whatever went wrong before, an object whose groups can come up is reached, or the plan says what is in the way."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import MISSING, raw
from kvferry_contract.config import Role
from kvferry_operator.api.parse import parse
from kvferry_operator.desired.stage import roles
from simulated_cluster import SimulatedCluster

SIZES = st.sampled_from([(1, 1), (2, 1), (1, 2), (1, 3), (4, 2), (3, 5)])
LIMITS = st.sampled_from([(1, 0), (2, 0), (1, 1), (3, 2), (0, 1), (0, 2)])


@st.composite
def changes(draw: st.DrawFn, restart: str) -> dict[str, Any]:
    """Of the object, in any numbers."""
    prefill, decode = draw(SIZES)
    made: dict[str, Any] = {"prefill.replicas": prefill, "decode.replicas": decode, "restartID": restart}
    for role in ("prefill", "decode"):
        surge, unavailable = draw(LIMITS)
        made[f"{role}.rollout"] = {"maxSurge": surge, "maxUnavailable": unavailable}
        made[f"{role}.parallelism"] = {"pipeline": draw(st.sampled_from([1, 2]))}
    return made | ({"mode": "Aggregated", "prefill": MISSING} if draw(st.integers(0, 5)) == 0 else {})


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "a", "b"]).flatmap(changes),
            st.sampled_from(["", "prefill", "decode"]),
            st.integers(0, 25),
        ),
        min_size=1,
        max_size=3,
    ),
    changes("last"),
    st.randoms(use_true_random=False),
)
def test_a_good_object_is_reached_after_bad_ones_and_lost_pods(
    before: list[tuple[dict[str, Any], str, int]], last: dict[str, Any], random: Random
) -> None:
    """Any of those before may have a role that never comes up; pods vanish, or stop being ready, at any moment."""
    cluster = SimulatedCluster(raw(before[0][0]))
    for change, failing, moves in [*before, (last, "", 5)]:
        cluster.raw = raw(change)
        if failing:
            cluster.bad[failing, cluster.plan().revisions.update] = 0
        for _ in range(moves):
            cluster.do(cluster.plan())
            cluster.move(random)
            if cluster.pods and random.random() < 0.1:
                name = random.choice(list(cluster.pods))
                cluster.set_ready(cluster.pods[name], False)
                if random.random() < 0.5:
                    del cluster.pods[name]
    cluster.settle()
    step = cluster.plan()
    if not step.waits:
        assert {cohort.revision for cohort in cluster.fleet.cohorts} == {step.revisions.update}, step.why
        for role, spec in roles(parse(cluster.raw)):
            assert cluster.serving(role) == cluster.occupied(role) == spec.replicas, step.why


def test_a_pod_that_is_not_ready_for_a_moment_costs_no_ready_one_when_the_object_changes() -> None:
    """A group that may come back is kept in addition, which fills the role up."""
    only = {"mode": "Aggregated", "prefill": MISSING, "decode.replicas": 4}
    for moves in range(1, 20):
        for number in range(2):
            cluster = SimulatedCluster(raw(only))
            cluster.settle()
            cluster.raw = raw({**only, "restartID": "next"})
            for _ in range(moves):
                cluster.do(cluster.plan())
                cluster.move(Random(0), 1.0)
            firsts = [pod for name, pod in cluster.pods.items() if name.endswith("-0")]
            if number < len(firsts):
                condition = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                firsts[number]["status"] = {"phase": "Running", "conditions": [condition]}
            before = kept(cluster)
            cluster.raw = raw({**only, "restartID": "third"})
            cluster.do(cluster.plan())
            assert kept(cluster) >= min(before, 4), f"{moves} moves: {cluster.plan().why}"


def kept(cluster: SimulatedCluster) -> int:
    """Ready groups of decode that may stay."""
    return sum(cohort.ready for cohort in cluster.fleet.of_role(Role.DECODE))
