"""A torn group is made anew as a whole, once, at a pace; everything else is left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import raw
from kvferry_contract.config import Role
from kvferry_operator.plan.lives import Phase
from simulated_cluster import SimulatedCluster

Uids = dict[str, str]
STAGED = {"decode.replicas": 2, "decode.parallelism": {"pipeline": 3}}


def serving(changes: dict[str, Any] | None = None) -> SimulatedCluster:
    cluster = SimulatedCluster(raw({**STAGED, **(changes or {})}))
    cluster.settle()
    return cluster


def group(cluster: SimulatedCluster, ordinal: int) -> Uids:
    """Names and uids of the pods of a decode group, by stage."""
    found = {name: pod["metadata"]["uid"] for name, pod in cluster.pods.items() if "-decode-" in name}
    return {name: uid for name, uid in sorted(found.items()) if name.endswith(f"-{ordinal}")}


def lose(cluster: SimulatedCluster, ordinal: int = 0, stage: int = 1, after: float = 30) -> None:
    """One pod is gone at once, as with its node."""
    cluster.now += timedelta(seconds=after)
    del cluster.pods[list(group(cluster, ordinal))[stage]]


def turn(cluster: SimulatedCluster, seconds: float = 1.0) -> None:
    """A pass, then the cluster's answer."""
    cluster.do(cluster.plan())
    cluster.now += timedelta(seconds=seconds - 1.0)
    cluster.move(Random(0), 1.0)


def until(cluster: SimulatedCluster, done: Callable[[], bool]) -> float:
    """Seconds until it is so."""
    began = cluster.now
    for _ in range(60):
        if done():
            return (cluster.now - began).total_seconds()
        turn(cluster, seconds=2)
    raise AssertionError(f"not within {cluster.now - began}: {cluster.plan().restarts}")


def lives_of(workload: dict[str, Any]) -> str:
    return str(workload["metadata"]["annotations"].get("kvferry.io/lives", ""))


def lives(cluster: SimulatedCluster) -> dict[str, Any]:
    found = list(filter(None, map(lives_of, cluster.workloads())))
    assert len(found) <= 1, "on the first stage alone"
    return json.loads(found[0]) if found else {}


def test_a_lost_pod_takes_its_group_with_it_and_nobody_else() -> None:
    cluster = serving()
    before, others = group(cluster, 0), {name: pod["metadata"]["uid"] for name, pod in cluster.pods.items()}
    lose(cluster)
    cluster.settle()
    after = group(cluster, 0)
    assert after.keys() == before.keys() and not set(after.values()) & set(before.values())
    rest = {name: uid for name, uid in others.items() if name not in before}
    assert rest == {name: cluster.pods[name]["metadata"]["uid"] for name in rest}
    assert cluster.serving(Role.DECODE) == 2


def test_it_is_done_once() -> None:
    cluster = serving()
    lose(cluster)
    cluster.settle()
    after = group(cluster, 0)
    for _ in range(20):
        turn(cluster, seconds=30)
    assert group(cluster, 0) == after and not cluster.plan().restarts.torn


def test_it_is_decided_in_one_pass_and_done_in_the_next() -> None:
    """Whoever begins anew in between neither counts twice nor deletes what is not counted."""
    cluster = serving()
    lose(cluster)
    decides = cluster.plan()
    assert decides.restarts.pods == () and decides.restarts.again == timedelta()
    assert cluster.plan().restarts == decides.restarts, "as long as it is not written"
    cluster.do(decides)
    assert lives(cluster)["0"]["count"] == 1
    left = group(cluster, 0)
    does = cluster.plan()
    assert {pod.name: pod.uid for pod in does.restarts.pods} == left
    assert cluster.plan().restarts == does.restarts, "whoever acts"
    cluster.do(does)
    assert cluster.plan().restarts.pods == (), "pods that are on their way out are not deleted again"
    assert lives(cluster)["0"]["count"] == 1


def test_a_pod_that_is_new_already_stays() -> None:
    cluster = serving()
    lose(cluster)
    turn(cluster)
    (new,) = [name for name, uid in group(cluster, 0).items() if "s1" in name]
    uid = cluster.pods[new]["metadata"]["uid"]
    cluster.settle()
    assert cluster.pods[new]["metadata"]["uid"] == uid


def test_pauses_double_and_at_last_the_group_is_left_as_it_is() -> None:
    cluster = serving({"decode.restart": {"maxRestarts": 3, "backoffSeconds": 20}})
    waited = []
    for _ in range(3):
        before = group(cluster, 0)
        lose(cluster, after=5)
        kept = next(name for name in before if "-s0-" in name)
        waited.append(until(cluster, lambda: group(cluster, 0).get(kept) not in (before[kept], None)))  # noqa: B023
        until(cluster, lambda: lives(cluster)["0"].keys() == {"since", "count", "at"})
    assert waited[0] < 10 and 10 <= waited[1] < 25 and 30 <= waited[2] < 45
    lose(cluster)
    survivors = group(cluster, 0)
    for _ in range(10):
        turn(cluster, seconds=600)
    assert survivors.items() <= group(cluster, 0).items()
    (torn,) = cluster.plan().restarts.torn
    assert (torn.phase, torn.count, torn.most, torn.why) == (Phase.LEFT, 3, 3, "its stage 1 was lost")


def test_pauses_as_long_as_the_memory_of_it_do_not_make_it_forgotten() -> None:
    cluster = serving({"decode.restart": {"maxRestarts": 3, "backoffSeconds": 3600}})
    for count in (1, 2, 3):
        lose(cluster, after=5)
        turn(cluster)
        cluster.now += (cluster.plan().restarts.again or timedelta()) + timedelta(seconds=1)
        until(cluster, lambda: lives(cluster)["0"].keys() == {"since", "count", "at"})
        assert lives(cluster)["0"]["count"] == count
    lose(cluster, after=5)
    turn(cluster)
    assert cluster.plan().restarts.torn[0].phase is Phase.LEFT


def exhausted() -> SimulatedCluster:
    cluster = serving({"decode.restart": {"maxRestarts": 0}})
    lose(cluster)
    for _ in range(5):
        turn(cluster)
    assert cluster.plan().restarts.torn[0].phase is Phase.LEFT
    return cluster


def test_a_person_begins_anew_by_deleting_what_is_left() -> None:
    cluster = exhausted()
    for name in group(cluster, 0):
        cluster.delete(name)
    cluster.settle()
    assert not cluster.plan().restarts.torn and lives(cluster)["0"].keys() == {"since"}


def test_a_person_begins_anew_by_allowing_more() -> None:
    cluster = exhausted()
    before = group(cluster, 0)
    cluster.raw = raw({**STAGED, "decode.restart": {"maxRestarts": 1}})
    cluster.settle()
    assert not cluster.plan().restarts.torn
    assert next(iter(group(cluster, 0).values())) not in before.values()


def test_a_group_that_came_back_by_itself_while_nobody_looked_is_kept() -> None:
    cluster = serving()
    lose(cluster)
    cluster.move(Random(0), 1.0)
    cluster.now += timedelta(seconds=10)
    for name in group(cluster, 0):
        cluster.set_ready(cluster.pods[name], False)
        cluster.set_ready(cluster.pods[name], True)
    before = group(cluster, 0)
    cluster.settle()
    assert group(cluster, 0) == before and "count" not in lives(cluster)["0"]


def test_an_hour_of_good_service_is_a_new_beginning() -> None:
    cluster = serving()
    lose(cluster)
    cluster.settle()
    assert lives(cluster)["0"]["count"] == 1
    cluster.now += timedelta(minutes=59)
    cluster.settle()
    assert lives(cluster)["0"]["count"] == 1
    cluster.now += timedelta(minutes=2)
    cluster.settle()
    assert lives(cluster)["0"].keys() == {"since"}


def test_a_tear_after_an_hour_of_good_service_is_the_first_though_nobody_looked_in_between() -> None:
    cluster = serving({"decode.restart": {"maxRestarts": 1}})
    lose(cluster)
    cluster.settle()
    assert lives(cluster)["0"]["count"] == 1
    before = group(cluster, 0)
    lose(cluster, after=3700)
    cluster.settle()
    assert not set(group(cluster, 0).values()) & set(before.values()), "all its pods are new"
    assert lives(cluster)["0"]["count"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"decode.parallelism": {"pipeline": 1}},
        {"decode.restart": {"policy": "RecreatePod"}},
    ],
)
def test_groups_that_are_none_of_its_business(changes: dict[str, Any]) -> None:
    cluster = serving(changes)
    stage = 0 if cluster.raw["spec"]["decode"]["parallelism"]["pipeline"] == 1 else 1
    lose(cluster, stage=stage)
    others = {name: pod["metadata"]["uid"] for name, pod in cluster.pods.items()}
    cluster.settle()
    assert others.items() <= {name: pod["metadata"]["uid"] for name, pod in cluster.pods.items()}.items()
    assert lives(cluster) == {}


def test_pods_that_drain_are_waited_for() -> None:
    """Requests that are open on a group end before it does."""
    cluster = serving()
    cluster.delete(list(group(cluster, 0))[1])
    for _ in range(10):
        cluster.now += timedelta(seconds=1)
        step = cluster.plan()
        assert not (step.restarts.pods or step.restarts.torn)
        cluster.do(step)


def test_groups_that_are_scaled_away_are_not_made_anew() -> None:
    cluster = serving()
    cluster.raw = raw({**STAGED, "decode.replicas": 1})
    cluster.do(cluster.plan())
    lose(cluster, ordinal=1)
    for _ in range(10):
        assert not cluster.plan().restarts.torn
        turn(cluster)
    assert not group(cluster, 1)


def test_groups_of_an_old_revision_are_left_to_themselves() -> None:
    cluster = serving()
    old = group(cluster, 0)
    cluster.raw = raw({**STAGED, "restartID": "next"})
    cluster.bad["decode", cluster.plan().revisions.update] = 0
    cluster.settle()
    cluster.now += timedelta(seconds=30)
    del cluster.pods[list(old)[1]]
    cluster.settle()
    kept = {name: cluster.pods[name]["metadata"]["uid"] for name in old}
    assert [kept[name] == uid for name, uid in old.items()] == [True, False, True]


def test_a_group_whose_stage_ends_again_and_again_is_made_anew_once_it_had_served() -> None:
    cluster = serving()
    never = SimulatedCluster(raw(STAGED))
    never.bad["decode", never.plan().revisions.update] = 0
    never.settle()
    for each in (cluster, never):
        before = group(each, 0)
        for name in before:
            each.set_ready(each.pods[name], False)
            each.pods[name]["status"]["containerStatuses"][0] |= {
                "restartCount": 5,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            }
        each.do(each.plan())
        going = each.plan().restarts.pods
        assert [pod.uid for pod in going] == ([] if each is never else list(before.values()))


def test_new_pods_are_not_deleted_for_ever_when_the_clock_was_set_back() -> None:
    """They count as older than the group that was whole."""
    cluster = serving()
    lose(cluster, after=-3600)
    cluster.bad["decode", cluster.plan().revisions.update] = 0
    for _ in range(30):
        turn(cluster, seconds=2)
    new = group(cluster, 0)
    assert len(new) == 3
    for _ in range(30):
        turn(cluster, seconds=2)
    assert group(cluster, 0) == new


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_times_with_which_nobody_can_count_stop_nothing(time: str) -> None:
    cluster = serving()
    lose(cluster)
    (text,) = (each["metadata"]["annotations"] for each in cluster.workloads() if lives_of(each))
    text["kvferry.io/lives"] = json.dumps({"0": lives(cluster)["0"] | {"at": time, "count": 1}})
    for name in group(cluster, 0):
        ended = {"terminated": {"finishedAt": time}}
        cluster.pods[name]["status"]["containerStatuses"][0]["lastState"] = ended
    cluster.settle()
    assert cluster.serving(Role.DECODE) == 2 and not cluster.plan().restarts.torn


def test_pods_that_could_not_be_deleted_in_time_are_decided_on_again() -> None:
    cluster = serving({"decode.restart": {"backoffSeconds": 5}})
    lose(cluster)
    cluster.do(cluster.plan())
    cluster.now += timedelta(minutes=5)
    assert cluster.plan().restarts.pods == ()
    cluster.do(cluster.plan())
    assert lives(cluster)["0"]["count"] == 2
    assert len(cluster.plan().restarts.pods) == 2


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 12)), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_whatever_is_lost_when_all_groups_serve_again_and_nothing_is_deleted_any_more(
    losses: list[tuple[int, int, int]], random: Random
) -> None:
    cluster = serving({"decode.restart": {"maxRestarts": 1000, "backoffSeconds": 0}})
    for ordinal, stage, turns in losses:
        names = list(group(cluster, ordinal))
        if stage < len(names):
            del cluster.pods[names[stage]]
        for _ in range(turns):
            cluster.do(cluster.plan())
            cluster.move(random)
    cluster.now += timedelta(seconds=60)
    cluster.settle()
    assert cluster.serving(Role.DECODE) == 2
    before = {name: pod["metadata"]["uid"] for name, pod in cluster.pods.items()}
    for _ in range(5):
        turn(cluster, seconds=60)
    assert before == {name: pod["metadata"]["uid"] for name, pod in cluster.pods.items()}
