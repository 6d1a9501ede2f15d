"""Groups of pipeline stages in a status: counted as wholes, with the one stage named that is the trouble."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import pytest

from builders import raw
from model_statuses import kstatus, ready_cluster, ready_status, role, told
from simulated_cluster import SimulatedCluster

STAGED: dict[str, Any] = {"decode.replicas": 2, "decode.parallelism": {"pipeline": 2}}


def serving(**changes: Any) -> SimulatedCluster:
    return ready_cluster(raw({**STAGED, **{path.replace("__", "."): value for path, value in changes.items()}}))


def pod(cluster: SimulatedCluster, ending: str) -> str:
    (name,) = (name for name in cluster.pods if "-decode-" in name and name.endswith(ending))
    return name


def message(status: dict[str, Any], kind: str = "DecodeReady") -> str:
    return str(next(each["message"] for each in status["conditions"] if each["type"] == kind))


def test_groups_are_counted_not_pods() -> None:
    status = ready_status(serving())
    assert told(status, "Ready") == ("True", "AsAskedFor")
    assert role(status, "decode")["groups"] == {"complete": 2, "total": 2}
    assert status["summary"]["decode"] == "2/2" and status["decodeReplicas"] == 2


def test_a_group_that_lacks_a_stage_is_not_complete_and_the_stage_is_named() -> None:
    cluster = serving(decode__restart={"policy": "RecreatePod"})
    workload = pod(cluster, "s1-1").removesuffix("-1")
    del cluster.pods[pod(cluster, "s1-1")]
    status = ready_status(cluster)
    assert told(status, "DecodeReady") == ("False", "Starting") and kstatus(status) == "InProgress"
    assert message(status) == (
        f"stage 1 of group 1 has no pod yet; if none comes, kubectl describe statefulset {workload} says why"
    )
    assert role(status, "decode")["groups"] == {"complete": 1, "total": 2}
    assert status["summary"]["decode"] == "1/2"


def test_stages_that_only_wait_are_not_blamed() -> None:
    cluster = serving()
    waiting, broken = cluster.pods[pod(cluster, "s0-0")], cluster.pods[pod(cluster, "s1-0")]
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    waiting["status"] = {"containerStatuses": [{"name": "engine", "ready": False, "started": True, "state": state}]}
    ended = {"terminated": {"exitCode": 1, "message": "no room for 14 layers"}}
    broken["status"] = {"containerStatuses": [{"name": "engine", "ready": False, "state": ended, "lastState": ended}]}
    status = ready_status(cluster)
    assert told(status, "DecodeReady") == ("False", "CrashLoopBackOff")
    name = broken["metadata"]["name"]
    assert message(status).startswith(
        f"pod {name} (stage 1 of group 0) container engine ended with exit code 1: no room"
    )
    assert told(status, "Reconciling")[0] == "True", "it is on its way: nobody waits for a probe"


def lose(cluster: SimulatedCluster) -> None:
    cluster.now += timedelta(minutes=1)
    del cluster.pods[pod(cluster, "s1-0")]


def test_a_group_that_is_made_anew_says_so_and_why() -> None:
    cluster = serving()
    lose(cluster)
    cluster.do(cluster.plan())
    status = ready_status(cluster)
    assert told(status, "DecodeReady") == ("False", "GroupRestarting") and kstatus(status) == "InProgress"
    assert message(status) == "group 0 is made anew as a whole, for the 1st time of at most 5: its stage 1 was lost"
    assert told(status, "Available") == ("True", "Serving")
    cluster.settle()
    assert told(ready_status(cluster), "Ready") == ("True", "AsAskedFor")


def test_a_pause_is_told_in_words_that_stay_the_same() -> None:
    cluster = serving()
    lose(cluster)
    cluster.settle()
    lose(cluster)
    cluster.now -= timedelta(seconds=59)
    cluster.do(cluster.plan())
    first = message(ready_status(cluster))
    cluster.now += timedelta(seconds=10)
    cluster.move(Random(0), 1.0)
    assert told(ready_status(cluster), "DecodeReady") == ("False", "GroupBackOff")
    assert first == "group 0 is made anew as a whole after a pause of 30 s: its stage 1 was lost"
    assert message(ready_status(cluster)) == first


@pytest.mark.parametrize("most", [0, 1])
def test_a_group_that_is_left_as_it_is_needs_a_person_and_says_what_to_do(most: int) -> None:
    cluster = serving(decode__restart={"maxRestarts": most, "backoffSeconds": 0})
    for _ in range(most):
        lose(cluster)
        cluster.settle()
    lose(cluster)
    cluster.settle()
    status = ready_status(cluster)
    assert told(status, "DecodeReady") == ("False", "RestartsExhausted")
    assert told(status, "Stalled") == ("True", "RestartsExhausted") and kstatus(status) == "Failed"
    text = message(status)
    begin = "group 0 was made anew once and broke again" if most else "group 0 broke"
    assert text.startswith(f"{begin}, and is left as it is by spec.decode.restart.maxRestarts: its stage 1 was lost")
    revision = status["revisions"]["update"]
    assert text.endswith(
        "kubectl delete pod -l kvferry.io/model=tiny,kvferry.io/role=decode,"
        f"kvferry.io/revision={revision},apps.kubernetes.io/pod-index=0"
    )


def test_a_paused_model_says_nothing_of_restarts() -> None:
    cluster = serving()
    cluster.raw = raw({**STAGED, "paused": True})
    lose(cluster)
    status = ready_status(cluster, planned=False)
    assert told(status, "DecodeReady") == ("False", "Starting")
