"""A rollout always ends, and on the way never gives up more than it was told it may."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import MISSING, raw
from kvferry_contract.config import Role
from kvferry_operator.api.parse import parse
from kvferry_operator.desired.stage import roles
from simulated_cluster import SimulatedCluster

PREFILL, DECODE = Role.PREFILL, Role.DECODE


def spec(prefill: int = 2, decode: int = 2, restart: str = "", **changes: Any) -> dict[str, Any]:
    """restart: another one is another revision."""
    given = {"prefill.replicas": prefill, "decode.replicas": decode, "restartID": restart}
    return raw(given | {path.replace("__", "."): value for path, value in changes.items()})


def installed(manifest: dict[str, Any]) -> SimulatedCluster:
    cluster = SimulatedCluster(manifest)
    cluster.settle()
    return cluster


def counts(cluster: SimulatedCluster, role: Role) -> dict[str, int]:
    return {name: cohort.declared for name, cohort in cluster.by_revision(role).items() if cohort.declared}


def turn(cluster: SimulatedCluster) -> None:
    cluster.do(cluster.plan())
    cluster.move(Random(0), 1.0)


def test_a_first_installation_asks_for_all_groups_at_once() -> None:
    cluster = SimulatedCluster(spec(3, 5))
    step = cluster.plan()
    cluster.do(step)
    assert counts(cluster, PREFILL) == {step.revisions.update: 3} and counts(cluster, DECODE) == {
        step.revisions.update: 5
    }
    assert step.revisions.current == step.revisions.update


def test_a_steady_model_gives_the_same_plan_with_nothing_to_do() -> None:
    cluster = installed(spec(2, 3))
    first, second = cluster.plan(), cluster.plan()
    assert first == second and not (first.scales or first.prune or first.hand_overs)
    assert not cluster.do(first)


def test_a_change_of_replicas_alone_changes_no_revision_and_no_pod() -> None:
    """Case 8."""
    cluster = installed(spec(2, 2))
    before, revision = set(cluster.pods), cluster.plan().revisions
    cluster.raw = spec(4, 2)
    assert cluster.plan().revisions == revision
    cluster.settle()
    assert before < set(cluster.pods) and len(cluster.pods) == len(before) + 2


def test_no_role_runs_ahead_of_one_that_fails_to_update() -> None:
    """Case 9: the surge of prefill is its allowed skew; a matched old pair of every kind stays up."""
    cluster = installed(spec(7, 3))
    old = cluster.plan().revisions.update
    cluster.raw = spec(7, 3, restart="bad")
    update = cluster.plan().revisions.update
    cluster.bad["decode", update] = 0
    cluster.settle()
    assert counts(cluster, PREFILL) == {old: 7, update: 1}
    assert counts(cluster, DECODE) == {old: 3, update: 1}
    assert cluster.plan().revisions.current == old


def test_no_role_runs_ahead_of_one_that_comes_up_in_part() -> None:
    """Case 9: one of three new decode groups is well, so a third of prefill follows, and one more."""
    cluster = installed(spec(7, 3))
    cluster.raw = spec(7, 3, restart="bad")
    update = cluster.plan().revisions.update
    cluster.bad["decode", update] = 1
    cluster.settle()
    assert counts(cluster, PREFILL)[update] == 3 and counts(cluster, DECODE)[update] == 2


def test_a_role_that_waits_for_the_old_revision_to_go_holds_nobody_up() -> None:
    """The last old decode keeps the last old prefill company, and its place is wanted for the last new decode."""
    limits = {"decode__rollout": {"maxSurge": 0, "maxUnavailable": 1}}
    cluster = installed(spec(4, 2, **limits))
    cluster.raw = spec(4, 2, restart="next", **limits)
    for _ in range(40):
        turn(cluster)
        assert cluster.serving(PREFILL) >= 4 and cluster.serving(DECODE) >= 1
    assert cluster.fleet.revisions == (cluster.plan().revisions.update,)


def test_an_old_pair_stays_even_when_all_may_be_unavailable() -> None:
    limits = {f"{role}__rollout": {"maxSurge": 1, "maxUnavailable": 9} for role in ("prefill", "decode")}
    cluster = installed(spec(3, 3, **limits))
    old = cluster.plan().revisions.update
    cluster.raw = spec(3, 3, restart="bad", **limits)
    cluster.bad["prefill", cluster.plan().revisions.update] = 0
    cluster.settle()
    assert counts(cluster, PREFILL)[old] >= 1 and counts(cluster, DECODE)[old] >= 1


def test_going_back_to_a_revision_that_still_exists_uses_its_pods() -> None:
    cluster = installed(spec(3, 3))
    first, pods = cluster.plan().revisions.update, set(cluster.pods)
    cluster.raw = spec(3, 3, restart="bad")
    cluster.bad["decode", cluster.plan().revisions.update] = 0
    cluster.settle()
    cluster.raw = spec(3, 3)
    assert cluster.plan().revisions.update == first
    cluster.settle()
    assert set(cluster.pods) == pods and cluster.fleet.revisions == (first,)


def test_a_revision_that_never_worked_is_replaced_without_waiting_for_it() -> None:
    cluster = SimulatedCluster(spec(4, 4, prefill__rollout={"maxSurge": 0, "maxUnavailable": 1}))
    update = cluster.plan().revisions.update
    cluster.bad |= {("prefill", update): 0, ("decode", update): 0}
    cluster.settle()
    cluster.raw = spec(4, 4, restart="good", prefill__rollout={"maxSurge": 0, "maxUnavailable": 1})
    turn(cluster)
    assert set(counts(cluster, PREFILL)) | set(counts(cluster, DECODE)) == {cluster.plan().revisions.update}
    cluster.settle()
    assert cluster.serving(PREFILL) == cluster.serving(DECODE) == 4


def test_a_single_group_without_surge_is_replaced_in_place_when_the_others_are_there() -> None:
    in_place = {"decode__rollout": {"maxSurge": 0, "maxUnavailable": 1}}
    cluster = installed(spec(3, 1, **in_place))
    old = cluster.plan().revisions.update
    cluster.raw = spec(3, 1, restart="next", **in_place)
    cluster.do(cluster.plan())
    assert counts(cluster, DECODE) == {old: 1}, "goes on serving while the new prefill comes up"
    cluster.settle()
    assert cluster.fleet.revisions == (cluster.plan().revisions.update,)


def test_two_old_revisions_do_not_both_wait_for_a_group_that_is_replaced_in_place() -> None:
    cluster = installed(spec(1, 1))
    cluster.raw = spec(1, 1, restart="next")
    turn(cluster)
    cluster.raw = spec(1, 1, restart="third", decode__rollout={"maxSurge": 0, "maxUnavailable": 1})
    cluster.settle()
    assert cluster.fleet.revisions == (cluster.plan().revisions.update,)


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), (3, 1), (3, 2)])
def test_old_revisions_that_serve_only_together_do_not_fill_a_role_up_for_ever(sizes: tuple[int, int]) -> None:
    """With a change in the middle of a rollout, at any moment of it: something serves all the time, and it ends."""
    for moves in range(12):
        cluster = installed(spec(*sizes))
        for restart in ("next", "third"):
            cluster.raw = spec(*sizes, restart=restart)
            for _ in range(moves):
                turn(cluster)
                assert min(cluster.serving(PREFILL), cluster.serving(DECODE)) >= 1, f"{moves} moves: {restart}"
        for _ in range(60):
            turn(cluster)
            assert min(cluster.serving(PREFILL), cluster.serving(DECODE)) >= 1, f"{moves} moves"
        assert cluster.fleet.revisions == (cluster.plan().revisions.update,), f"{moves} moves: {cluster.plan().why}"


def test_broken_groups_below_healthy_ones_do_not_block_a_role_that_may_not_surge() -> None:
    limits = {f"{role}__rollout": {"maxSurge": 0, "maxUnavailable": 1} for role in ("prefill", "decode")}
    cluster = installed(spec(3, 3, **limits))
    old = cluster.plan().revisions.update
    for name, pod in cluster.pods.items():
        if "decode" in name and name.endswith("-0"):
            cluster.set_ready(pod, False)
    cluster.raw = spec(3, 3, restart="next", **limits)
    cluster.do(cluster.plan())
    assert counts(cluster, DECODE) == {old: 2} and counts(cluster, PREFILL)[old] == 2


def test_a_rollout_that_broken_groups_block_says_what_to_change() -> None:
    limits = {"decode__rollout": {"maxSurge": 0, "maxUnavailable": 1}}
    cluster = installed(spec(2, 2, **limits))
    for name, pod in cluster.pods.items():
        if "decode" in name and name.endswith("-0"):
            cluster.set_ready(pod, False)
    cluster.raw = spec(2, 2, restart="next", **limits)
    step = cluster.plan()
    assert "spec.decode.rollout" in step.waits and "maxSurge" in step.waits and not step.scales


def test_old_children_stay_until_the_last_pod_is_gone() -> None:
    """Case 6: pods find each other and their settings by them."""
    cluster = installed(spec(1, 1))
    old = cluster.plan().revisions.update
    cluster.raw = spec(0, 0, restart="next")
    cluster.do(cluster.plan())
    for pod in cluster.pods.values():
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    step = cluster.plan()
    assert not step.prune
    last = next(iter(cluster.pods))
    cluster.pods = {last: cluster.pods[last]}
    assert not cluster.plan().prune
    cluster.pods.clear()
    gone = {(ref.kind.kind, old in ref.name) for ref in cluster.plan().prune}
    assert gone == {("StatefulSet", True), ("ConfigMap", True), ("Service", True)}


def test_what_the_object_does_not_ask_for_any_more_is_removed_and_what_is_not_ours_stays() -> None:
    """Case 6."""
    cluster = installed(spec(2, 2))
    foreign = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "theirs", "uid": "x", "labels": {"kvferry.io/model": "tiny"}},
    }
    cluster.children["ConfigMap", "theirs"] = foreign
    cluster.raw = spec(2, 2, security__networkPolicy=False, decode__disruption={"budget": "None"})
    assert [(ref.kind.kind, ref.name) for ref in cluster.plan().prune] == [
        ("NetworkPolicy", "tiny-groups"),
        ("PodDisruptionBudget", "tiny-decode-budget"),
    ]


def stage_policies(cluster: SimulatedCluster) -> list[str]:
    return [name for kind, name in cluster.children if kind == "NetworkPolicy" and name.endswith("-stages")]


def test_stages_of_an_old_revision_reach_each_other_until_the_last_pod_is_gone() -> None:
    staged = {"decode__parallelism": {"pipeline": 2}}
    cluster = installed(spec(1, 1, **staged))
    (old,) = stage_policies(cluster)
    cluster.raw = spec(1, 1, restart="next", **staged)
    cluster.do(cluster.plan())
    assert old in stage_policies(cluster) and len(stage_policies(cluster)) == 2
    cluster.settle()
    assert old not in stage_policies(cluster) and len(stage_policies(cluster)) == 1


def test_a_policy_of_stages_goes_before_the_one_that_opens_all_other_ports() -> None:
    staged = {"decode__parallelism": {"pipeline": 2}}
    cluster = installed(spec(1, 1, **staged))
    cluster.raw = spec(1, 1, security__networkPolicy=False, restart="next", **staged)
    removed = [ref.name for ref in cluster.plan().prune if ref.kind.kind == "NetworkPolicy"]
    assert len(removed) == 2 and removed[0].endswith("-stages") and removed[1] == "tiny-groups"


def test_settings_of_before_stay_while_a_pod_mounts_them() -> None:
    cluster = installed(spec(1, 1))
    cluster.raw = spec(1, 1, decode__drain={"timeoutSeconds": 7})
    cluster.settle()
    maps = [name for kind, name in cluster.children if kind == "ConfigMap" and "decode" in name]
    assert len(maps) == 2, "the running pod has the first, its successor will have the second"
    cluster.pods = {name: pod for name, pod in cluster.pods.items() if "decode" not in name}
    cluster.settle()
    assert len([name for kind, name in cluster.children if kind == "ConfigMap" and "decode" in name]) == 1


def test_aggregated_takes_over_without_a_gap_and_back() -> None:
    cluster = installed(spec(2, 3))
    for manifest in (raw({"decode.replicas": 3, "mode": "Aggregated", "prefill": MISSING}), spec(2, 3)):
        cluster.raw = manifest
        for _ in range(60):
            turn(cluster)
            assert cluster.serving(DECODE) >= 3
        assert len(cluster.fleet.revisions) == 1
    assert cluster.serving(PREFILL) == 2


def test_stages_of_a_group_become_ready_together_or_not_at_all() -> None:
    cluster = SimulatedCluster(spec(1, 1, prefill__parallelism={"pipeline": 2}))
    cluster.settle()
    cohort = next(iter(cluster.by_revision(PREFILL).values()))
    assert (cohort.stages, cohort.ready) == (2, 1)
    cluster.set_ready(cluster.pods[next(name for name in cluster.pods if "prefill" in name and "-s1-" in name)], False)
    assert next(iter(cluster.by_revision(PREFILL).values())).ready == 0


LIMITS = st.sampled_from([(1, 0), (2, 0), (1, 1), (3, 2), (0, 1), (0, 2)])


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    """An object with any numbers; of few revisions, so that some come back."""
    sizes = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (4, 2), (3, 5), (0, 0)]))
    changes: dict[str, Any] = {"restart": draw(st.sampled_from(["", "a", "b"]))}
    for role in ("prefill", "decode"):
        surge, unavailable = draw(LIMITS)
        changes[f"{role}__rollout"] = {"maxSurge": surge, "maxUnavailable": unavailable}
        changes[f"{role}__parallelism"] = {"pipeline": draw(st.sampled_from([1, 1, 2]))}
    made = spec(*sizes, **changes)
    if draw(st.integers(0, 4)) == 0:
        made["spec"]["mode"] = "Aggregated"
        del made["spec"]["prefill"]
    return made


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(manifests(), st.integers(0, 25)), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_whatever_changes_when_it_ends_at_what_the_object_says(
    changes: list[tuple[dict[str, Any], int]], random: Random
) -> None:
    cluster = SimulatedCluster(changes[0][0])
    for manifest, moves in changes:
        cluster.raw = manifest
        for _ in range(moves):
            step = cluster.plan()
            before = {role: cluster.occupied(role) for role in (PREFILL, DECODE)}
            rolling = any(each.occupied and each.revision != step.revisions.update for each in cluster.fleet.cohorts)
            cluster.do(step)
            kept = {step.revisions.update} | {cohort.revision for cohort in cluster.fleet.cohorts if cohort.groups}
            assert not any(name in ref.name for ref in step.prune if ref.kind.kind == "StatefulSet" for name in kept)
            for role, limits in roles(parse(manifest)):
                most = limits.replicas + limits.rollout.max_surge
                # without an old revision it is but scaled: groups of before that still drain count as nothing then
                assert not rolling or cluster.occupied(role) <= max(most, before[role]), step.why
            cluster.move(random)
    cluster.settle()
    wanted = dict(roles(parse(cluster.raw)))
    assert {cohort.revision for cohort in cluster.fleet.cohorts} == {cluster.plan().revisions.update}
    for role, limits in wanted.items():
        assert cluster.serving(role) == cluster.occupied(role) == limits.replicas
    assert len(cluster.workloads()) == sum(limits.parallelism.pipeline for limits in wanted.values())


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(2, 2), (4, 2), (7, 3), (3, 5)]),
    st.tuples(LIMITS, LIMITS),
    st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(1, 30)), min_size=1, max_size=4),
    st.sampled_from([None, "prefill", "decode"]),
    st.randoms(use_true_random=False),
)
def test_what_serves_never_falls_below_what_may_be_unavailable(
    sizes: tuple[int, int],
    limits: tuple[tuple[int, int], tuple[int, int]],
    rollouts: list[tuple[str, int]],
    failing: str | None,
    random: Random,
) -> None:
    """Several revisions, of which any but the first may have a role that never comes up."""
    rules = {
        f"{role}__rollout": {"maxSurge": surge, "maxUnavailable": unavailable}
        for role, (surge, unavailable) in zip(("prefill", "decode"), limits, strict=True)
    }
    cluster = installed(spec(*sizes, **rules))
    if failing:
        for restart in ("b", "c"):
            cluster.raw = spec(*sizes, restart=restart, **rules)
            cluster.bad[failing, cluster.plan().revisions.update] = 0
    shared = False
    for restart, moves in rollouts:
        cluster.raw = spec(*sizes, restart=restart, **rules)
        for _ in range(moves):
            step = cluster.plan()
            old = {each.revision for each in cluster.fleet.cohorts if each.ready} - {step.revisions.update}
            least = {
                role: max(1, each.replicas - each.rollout.max_unavailable) for role, each in roles(parse(cluster.raw))
            }
            # of old revisions that serve only together some may have to go: then something serves, until it is over
            shared = len(old) > 1 or (shared and bool(old))
            cluster.do(step)
            cluster.move(random)
            for role, count in least.items():
                assert cluster.serving(role) >= (1 if shared else count), cluster.plan().why


@pytest.mark.parametrize("failing", ["prefill", "decode"])
@pytest.mark.parametrize("sizes", [(7, 3), (2, 6), (4, 4)])
def test_the_other_role_has_at_most_its_surge_of_new_groups_while_one_fails(
    failing: str, sizes: tuple[int, int]
) -> None:
    """Case 9."""
    cluster = installed(spec(*sizes, prefill__rollout={"maxSurge": 2}, decode__rollout={"maxSurge": 2}))
    cluster.raw = spec(*sizes, restart="x", prefill__rollout={"maxSurge": 2}, decode__rollout={"maxSurge": 2})
    update = cluster.plan().revisions.update
    cluster.bad[failing, update] = 0
    cluster.settle()
    other = DECODE if failing == "prefill" else PREFILL
    assert cluster.by_revision(other)[update].declared == 2
