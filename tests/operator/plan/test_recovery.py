"""Whatever went wrong before, an object whose groups can come up is reached, or the plan says what is in the way."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import MISSING, raw
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
