"""Groups as they are read out of workloads and pods."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import raw
from kvferry_contract.config import Role
from kvferry_operator.observation.fleet import Cohort, Group, Workload
from simulated_cluster import SimulatedCluster


def cohort(declared: int, groups: str) -> Cohort:
    """groups: one letter for each ordinal: r(eady), u(nready), b(roken), a dot where there is no pod."""
    found = [Group(number, (), each == "r", each == "b") for number, each in enumerate(groups) if each != "."]
    workload = Workload("w", "u", "1", Role.DECODE, "rev", 0, declared, "2026", "")
    return Cohort(Role.DECODE, "rev", 1, (workload,), tuple(found))


@pytest.mark.parametrize(
    ("declared", "groups", "needed", "size"),
    [
        (3, "rrr", 2, 2),
        (3, "rrr", 0, 0),
        (3, "rrr", 9, 3),
        (3, "urr", 2, 3),
        (3, "rru", 2, 2),
        (4, "uuuu", 2, 2),
        (4, "ruuu", 3, 3),
        (4, "bbbb", 3, 0),
        (4, "brbr", 2, 4),
        (4, "bubu", 1, 2),
        (4, "r...", 3, 3),
        (2, "rrrr", 9, 2),
    ],
)
def test_the_least_size_that_keeps_enough_groups(declared: int, groups: str, needed: int, size: int) -> None:
    assert cohort(declared, groups).size_for(needed) == size


@given(st.integers(0, 8), st.text("rub.", max_size=10), st.integers(0, 10))
def test_a_smaller_size_never_loses_what_is_needed(declared: int, groups: str, needed: int) -> None:
    found = cohort(declared, groups)
    size = found.size_for(needed)
    assert 0 <= size <= declared
    assert found.ready_below(size) >= min(needed, found.ready)
    assert size - found.broken_below(size) >= min(needed, found.alive)


def test_groups_that_are_about_to_go_hold_places_and_serve_nobody() -> None:
    found = cohort(2, "rrrr")
    assert (found.ready, found.occupied) == (2, 4)


@pytest.fixture
def cluster() -> SimulatedCluster:
    made = SimulatedCluster(raw({"decode.replicas": 2, "decode.parallelism": {"pipeline": 2}}))
    made.settle()
    return made


def decode(cluster: SimulatedCluster) -> Cohort:
    (found,) = cluster.by_revision(Role.DECODE).values()
    return found


def pod(cluster: SimulatedCluster, ending: str) -> dict[str, Any]:
    (name,) = (name for name in cluster.pods if "decode" in name and name.endswith(ending))
    return cluster.pods[name]


def test_a_group_is_ready_when_all_its_stages_are(cluster: SimulatedCluster) -> None:
    assert (decode(cluster).stages, decode(cluster).ready) == (2, 2)
    pod(cluster, "s1-0")["status"] = {}
    assert decode(cluster).ready == 1


def test_a_pod_that_is_being_deleted_is_not_ready_whatever_it_says(cluster: SimulatedCluster) -> None:
    pod(cluster, "s0-1")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert decode(cluster).ready == 1 and decode(cluster).alive == 2


def test_a_group_without_one_of_its_pods_is_not_ready(cluster: SimulatedCluster) -> None:
    del cluster.pods[pod(cluster, "s1-1")["metadata"]["name"]]
    assert decode(cluster).ready == 1 and decode(cluster).occupied == 2


@pytest.mark.parametrize("reason", ["CrashLoopBackOff", "ImagePullBackOff", "CreateContainerConfigError"])
def test_a_pod_that_waits_for_what_will_not_come_breaks_its_group(cluster: SimulatedCluster, reason: str) -> None:
    pod(cluster, "s1-1")["status"] = {"initContainerStatuses": [{"state": {"waiting": {"reason": reason}}}]}
    assert decode(cluster).alive == 1


def test_workloads_of_somebody_else_are_not_counted(cluster: SimulatedCluster) -> None:
    for child in cluster.workloads():
        if "decode" in child["metadata"]["name"]:
            child["metadata"]["ownerReferences"] = [{"uid": "other", "controller": True}]
    assert decode(cluster).declared == 0


def test_labels_that_were_changed_do_not_hide_a_workload(cluster: SimulatedCluster) -> None:
    for child in cluster.workloads():
        child["metadata"]["labels"] = {}
    assert decode(cluster).declared == 2 and not cluster.plan().prune
