"""The status as a whole: it never says more than is true, and says what to do."""

from __future__ import annotations

import copy
from datetime import timedelta
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import MISSING, raw
from kvferry_contract.config import Role
from kvferry_contract.pairs import PairState
from kvferry_operator.api.parse import parse
from kvferry_operator.errors import (
    ClusterError,
    Conflict,
    FieldError,
    Forbidden,
    Refused,
    SpecInvalid,
    Throttled,
    Unreachable,
)
from kvferry_operator.observation.observed import Failure, NodeCapacity, Nodes, Results
from kvferry_operator.status.changes import changes
from kvferry_operator.status.compute import compute
from model_statuses import NOW, checked, kstatus, observe, ready_cluster, ready_status, role, status_of, told
from router_reports import report
from simulated_cluster import SimulatedCluster

EVERY_TYPE = [
    "Ready",
    "Reconciling",
    "Stalled",
    "Available",
    "Progressing",
    "SpecValid",
    "PrefillReady",
    "DecodeReady",
    "RouterReady",
    "FabricReady",
    "TransferVerified",
    "RatioSatisfied",
]


def ready() -> SimulatedCluster:
    return ready_cluster(raw({"prefill.replicas": 2, "decode.replicas": 2}))


def test_a_model_that_is_as_it_was_asked_for_is_ready() -> None:
    """Case 13: every key that is written is in the schema."""
    cluster = ready()
    status = ready_status(cluster)
    assert [each["type"] for each in status["conditions"]] == EVERY_TYPE
    assert told(status, "Ready") == ("True", "AsAskedFor") and kstatus(status) == "Current"
    assert status["observedGeneration"] == 1 and status["phase"] == "Ready"
    assert status["endpoint"] == "http://tiny-router.models.svc"
    assert status["summary"] == {"prefill": "2/2", "decode": "2/2"}
    assert status["revisions"]["current"] == status["revisions"]["update"] == role(status, "decode")["revision"]
    assert status["fingerprint"] == "f1" and status["transfer"]["codec"] == "fp8"


def test_the_first_pass_already_writes_every_condition() -> None:
    status = status_of(SimulatedCluster(raw()))
    assert [each["type"] for each in status["conditions"]] == EVERY_TYPE
    assert kstatus(status) == "InProgress" and status["phase"] == "Installing"
    assert told(status, "Ready")[0] == "False" and told(status, "Reconciling")[0] == "True"


def test_old_pods_that_serve_do_not_make_a_new_generation_ready() -> None:
    """Case 7."""
    cluster = ready()
    cluster.raw = raw({"prefill.replicas": 2, "decode.replicas": 2, "engine.image": "reg/b:2"})
    random = Random(1)
    for _ in range(30):
        cluster.do(cluster.plan())
        status = ready_status(cluster)
        old_left = len({pod["metadata"]["labels"]["kvferry.io/revision"] for pod in cluster.pods.values()}) > 1
        if old_left or told(status, "DecodeReady")[0] == "False":
            assert told(status, "Ready")[0] == "False" and kstatus(status) == "InProgress"
        assert told(status, "Available") == ("True", "Serving")
        cluster.move(random, 0.6)
    cluster.settle()
    assert told(ready_status(cluster), "Ready")[0] == "True"


def test_each_role_says_what_is_wrong_with_it() -> None:
    """Case 12."""
    cluster = SimulatedCluster(raw({"prefill.rdma": {"mode": "devicePlugin", "resourceName": "rdma/hca"}}))
    cluster.settle()
    for name, pod in cluster.pods.items():
        waits = {"waiting": {"reason": "ImagePullBackOff"}}
        if "decode" in name:
            pod["status"] = {
                "containerStatuses": [{"name": "engine", "image": "reg/no:1", "ready": False, "state": waits}]
            }
        else:
            message = "0/1 nodes are available: 1 Insufficient rdma/hca."
            scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            pod["status"] = {"conditions": [scheduled]}
    cluster.start_router()
    nodes = Nodes((NodeCapacity("n1", {"rdma/hca": 0}), NodeCapacity("n2", {})))
    status = status_of(cluster, nodes=nodes)
    assert (role(status, "decode")["desired"], role(status, "decode")["ready"]) == (1, 0)
    assert told(status, "DecodeReady") == ("False", "ImagePullBackOff")
    assert told(status, "PrefillReady") == ("False", "Unschedulable")
    assert told(status, "FabricReady") == ("False", "NodesLackDevices")
    ready_message = status["conditions"][0]["message"]
    assert told(status, "Ready") == ("False", "ImagePullBackOff")
    assert "reg/no:1" in ready_message and "rdma/hca" in ready_message and "node n1 has 0" in ready_message
    events = [change.reason for change in changes({}, status)]
    assert events.count("ImagePullBackOff") == events.count("Unschedulable") == 1
    again = status_of(cluster, nodes=nodes, previous=status, now=NOW + timedelta(hours=1))
    assert again == status and changes(status, again) == ()


def test_aggregated_says_that_nothing_is_transferred() -> None:
    """Case 2."""
    cluster = ready_cluster(raw({"mode": "Aggregated", "prefill": MISSING}))
    status = status_of(cluster)
    assert told(status, "Ready")[0] == "True" and told(status, "TransferVerified") == ("False", "NotRequired")
    assert "transfer is off" in status["conditions"][EVERY_TYPE.index("TransferVerified") - 1]["message"]
    assert "prefill" not in status["summary"] and "transfer" not in status


def test_a_transfer_that_is_not_proved_keeps_an_object_from_being_ready_only_where_that_is_required() -> None:
    cluster = ready()
    assert told(status_of(cluster), "Ready") == ("False", "TransferPending")
    assert kstatus(status_of(cluster)) == "InProgress" and status_of(cluster)["phase"] == "Verifying"
    cluster.raw = raw({"prefill.replicas": 2, "decode.replicas": 2, "transfer.verify": {"required": False}})
    assert told(status_of(cluster), "Ready")[0] == "True"


def test_an_invalid_object_is_told_every_error_and_keeps_its_numbers() -> None:
    cluster = ready()
    before = ready_status(cluster)
    cluster.raw = raw({"prefill.replicas": 2, "decode.replicas": -2, "decode.replica": 1})
    observed = observe(cluster, status=before)
    with pytest.raises(SpecInvalid) as invalid:
        parse(observed.raw)
    status = checked(compute(None, invalid.value, observed, None, Results(), NOW))
    assert told(status, "SpecValid") == told(status, "Ready") == ("False", "SpecInvalid")
    assert kstatus(status) == "Failed" and status["phase"] == "Invalid"
    for path in ("spec.decode.replicas", "spec.decode.replica:"):
        assert path in status["conditions"][0]["message"]
    assert told(status, "Available")[0] == "True", "what runs goes on"
    assert status["roles"] == before["roles"] and status["endpoint"] == before["endpoint"]


def test_a_template_that_clashes_is_an_invalid_object_too() -> None:
    cluster = ready()
    invalid = SpecInvalid([FieldError("spec.decode.template", "clashes")])
    status = checked(compute(parse(cluster.raw), invalid, observe(cluster), None, Results(), NOW))
    assert told(status, "SpecValid")[0] == "False" and told(status, "Stalled") == ("True", "SpecInvalid")


def failed(error: ClusterError) -> Results:
    return Results(failures=(Failure("StatefulSet", "s", error),))


@pytest.mark.parametrize(
    ("results", "reason", "verdict", "words"),
    [
        (Results(conflicts=("Service/tiny-router",)), "NameConflict", "Failed", ["Service/tiny-router", "rename"]),
        (failed(Forbidden("add the rule")), "Forbidden", "Failed", ["StatefulSet/s: add the rule"]),
        (failed(Refused("bad field")), "ApplyRefused", "Failed", ["StatefulSet/s: bad field"]),
        (failed(Unreachable("in 7 s")), "ApplyFailed", "InProgress", ["StatefulSet/s", "tried again"]),
        (failed(Conflict("again")), "ApplyFailed", "InProgress", ["StatefulSet/s", "tried again"]),
        (failed(Throttled("later", 3.0)), "ApplyFailed", "InProgress", ["StatefulSet/s", "tried again"]),
    ],
)
def test_what_could_not_be_written_is_told(results: Results, reason: str, verdict: str, words: list[str]) -> None:
    status = ready_status(ready(), results=results)
    assert told(status, "Ready") == ("False", reason) and kstatus(status) == verdict
    assert all(word in status["conditions"][0]["message"] for word in words)
    assert told(status, "Available")[0] == "True"


def test_errors_that_pass_tell_no_times_or_counts() -> None:
    cluster = ready()
    texts = ("no answer in 3 s", "no answer in 30 s")
    first, second = (ready_status(cluster, results=failed(Unreachable(text))) for text in texts)
    assert first == second


def test_a_paused_object_is_ready_only_if_it_is_known_to_be_as_asked_for() -> None:
    cluster = ready()
    cluster.raw = raw({"prefill.replicas": 2, "decode.replicas": 2, "paused": True})
    assert told(ready_status(cluster), "Ready")[0] == "True", "planned: there is nothing to do"
    unknown = ready_status(cluster, planned=False)
    assert told(unknown, "Ready") == ("False", "Paused") and unknown["phase"] == "Paused"
    cluster.raw["spec"]["restartID"] = "x"
    waits = ready_status(cluster)
    assert told(waits, "Ready") == ("False", "Paused") and told(waits, "Reconciling") == ("False", "Paused")


def test_nothing_asked_for_is_ready_when_nothing_is_there() -> None:
    cluster = ready()
    cluster.raw = raw({"prefill.replicas": 0, "decode.replicas": 0})
    cluster.settle()
    status = status_of(cluster)
    assert told(status, "Ready") == ("True", "ScaledToZero") and told(status, "Available") == ("False", "ScaledToZero")
    assert kstatus(status) == "Current" and status["decodeReplicas"] == 0


def test_scaling_down_stays_ready_and_reconciling_until_the_last_pod_has_drained() -> None:
    cluster = ready()
    cluster.raw = raw({"prefill.replicas": 2, "decode.replicas": 1})
    cluster.do(cluster.plan())
    status = ready_status(cluster)
    assert told(status, "Ready")[0] == "True" and told(status, "Reconciling") == ("True", "ScalingDown")
    cluster.settle()
    assert kstatus(ready_status(cluster)) == "Current"


def test_a_rollout_that_cannot_go_on_is_stalled_while_the_old_revision_serves() -> None:
    cluster = ready()
    cluster.raw = raw({"prefill.replicas": 2, "decode.replicas": 2, "restartID": "x"})
    cluster.bad["decode", cluster.plan().revisions.update] = 0
    cluster.settle()
    for name, pod in cluster.pods.items():
        if "decode" in name and pod["status"]["conditions"][0]["status"] == "False":
            pod["status"]["containerStatuses"][0] |= {"restartCount": 5, "lastState": {"terminated": {"exitCode": 3}}}
    status = ready_status(cluster)
    assert told(status, "Available")[0] == "True" and kstatus(status) == "Failed"
    assert told(status, "Stalled") == ("True", "CrashLoopBackOff")
    assert role(status, "decode")["ready"] == 2 and status["revisions"]["current"] != status["revisions"]["update"]


def test_the_ratio_of_numbers_that_the_object_states_is_judged_and_left_alone() -> None:
    cluster = ready_cluster(raw({"prefill.replicas": 3, "decode.replicas": 1, "ratio": {"max": "2"}}))
    status = ready_status(cluster)
    assert told(status, "RatioSatisfied") == ("False", "OutOfBounds") and told(status, "Ready")[0] == "True"


def test_a_router_that_cannot_make_pods_is_told() -> None:
    cluster = ready()
    (deployment,) = (child for child in cluster.children.values() if child["kind"] == "Deployment")
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: pods"}
    deployment["status"] = {"conditions": [failure]}
    status = ready_status(cluster)
    assert told(status, "RouterReady") == ("False", "FailedCreate") and told(status, "Available") == (
        "False",
        "RouterNotReady",
    )
    assert "exceeded quota" in status["conditions"][0]["message"]


@pytest.mark.parametrize(
    ("told_by_its_controller", "expected"),
    [
        ({"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}, "True"),
        ({"replicas": 2, "updatedReplicas": 1, "readyReplicas": 2}, "False"),
        ({"replicas": 3, "updatedReplicas": 2, "readyReplicas": 3}, "False"),
        ({"replicas": 2, "updatedReplicas": 2, "readyReplicas": 1}, "False"),
        ({"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "observedGeneration": 1}, "False"),
        ({}, "False"),
    ],
)
def test_a_router_is_ready_when_all_its_pods_are_new_and_ready(
    told_by_its_controller: dict[str, int], expected: str
) -> None:
    """Case 7, for the router: old pods that are ready do not stand in for new ones."""
    cluster = ready_cluster(raw({"router.replicas": 2}))
    (deployment,) = (child for child in cluster.children.values() if child["kind"] == "Deployment")
    deployment["metadata"]["generation"] = 2
    deployment["status"] = {"observedGeneration": 2} | told_by_its_controller
    status = ready_status(cluster)
    assert (told(status, "RouterReady")[0], told(status, "Ready")[0]) == (expected, expected)


def test_groups_serve_only_in_pairs_of_one_revision() -> None:
    cluster = ready()
    old = cluster.plan().revisions.update
    cluster.raw = raw({"prefill.replicas": 2, "decode.replicas": 2, "restartID": "x"})
    cluster.bad["decode", cluster.plan().revisions.update] = 0
    cluster.settle()
    assert told(ready_status(cluster), "Available") == ("True", "Serving")
    for name, pod in cluster.pods.items():
        if f"prefill-{old}" in name:
            cluster.set_ready(pod, False)
    status = ready_status(cluster)
    assert role(status, "prefill")["ready"] == 1 and role(status, "decode")["ready"] == 2
    assert told(status, "Available") == ("False", "NoPair")


def test_a_transition_time_changes_with_the_status_alone() -> None:
    cluster = ready()
    first = status_of(cluster)
    later = NOW + timedelta(minutes=7)
    second = ready_status(cluster, previous=first, now=later)
    times = {each["type"]: each["lastTransitionTime"] for each in second["conditions"]}
    assert times["SpecValid"] == "2026-01-02T03:04:05Z" and times["Ready"] == "2026-01-02T03:11:05Z"


WORDS = st.sampled_from(
    ["", "Ready", "True", "False", "Unknown", "PodScheduled", "Unschedulable", "CrashLoopBackOff", "x" * 2000]
)
NUMBERS = st.sampled_from([-1, 0, 1, 3, 1 << 40])
STATES = st.fixed_dictionaries(
    {},
    optional={
        "waiting": st.fixed_dictionaries({}, optional={"reason": WORDS, "message": WORDS}),
        "running": st.fixed_dictionaries({}, optional={"startedAt": WORDS}),
        "terminated": st.fixed_dictionaries({}, optional={"exitCode": NUMBERS, "reason": WORDS, "message": WORDS}),
    },
)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": WORDS},
        optional={
            "ready": st.booleans(),
            "started": st.none() | st.booleans(),
            "state": STATES,
            "lastState": STATES,
            "restartCount": NUMBERS,
        },
    ),
    max_size=2,
)
TIMES = st.sampled_from(["", "2026-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "never"])
STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Pending", "Running", "Failed", "Succeeded", "Unknown"]),
        "reason": WORDS,
        "conditions": st.none()
        | st.lists(st.fixed_dictionaries({"type": WORDS, "status": WORDS, "lastTransitionTime": TIMES}), max_size=3),
        "containerStatuses": st.none() | CONTAINERS,
        "initContainerStatuses": CONTAINERS,
    },
)
LABELS = st.sampled_from(["prefill", "decode", "router", "s1", "0", "1", "99999999999", ""])


@cache
def stirred() -> SimulatedCluster:
    return ready_cluster(raw({"prefill.replicas": 2, "decode.parallelism": {"pipeline": 2}}))


@st.composite
def soups(draw: st.DrawFn) -> tuple[SimulatedCluster, dict[str, Any]]:
    """A cluster in which anything was changed that the API server lets one change."""
    cluster = copy.deepcopy(stirred())
    for pod in cluster.pods.values():
        if draw(st.booleans()):
            pod["status"] = draw(STATUSES)
        if draw(st.integers(0, 3)) == 0:
            pod["metadata"]["labels"] |= {
                f"kvferry.io/{draw(st.sampled_from(['role', 'stage', 'revision']))}": draw(LABELS)
            }
        if draw(st.integers(0, 5)) == 0:
            pod["metadata"]["labels"] = None
    for child in list(cluster.children.values()):
        if draw(st.integers(0, 4)) == 0:
            child["metadata"]["labels"] = draw(st.none() | st.dictionaries(st.just("kvferry.io/revision"), LABELS))
        if child["kind"] == "StatefulSet" and draw(st.integers(0, 3)) == 0:
            child["spec"]["replicas"] = draw(st.sampled_from([0, 1, 7, (1 << 31) - 1]))
            child["metadata"]["annotations"] = draw(st.none() | st.dictionaries(st.just("kvferry.io/groups"), LABELS))
        if draw(st.integers(0, 5)) == 0:
            child["metadata"]["ownerReferences"] = draw(
                st.sampled_from([None, [], [{"uid": "other", "controller": True}]])
            )
    changes = draw(
        st.sampled_from([{}, {"restartID": "b"}, {"decode.scaling": {"mode": "External"}}, {"paused": True}])
    )
    cluster.raw = raw(changes | {"decode.parallelism": {"pipeline": draw(st.sampled_from([1, 2]))}})
    return cluster, draw(
        st.sampled_from([{}, {"state": PairState.FAILED, "reason": "corrupt"}, {"bytes_raw": 1 << 80}])
    )


@settings(max_examples=100, deadline=None)
@given(soups(), st.booleans(), st.integers(0, 10**6))
def test_no_observation_breaks_it_and_the_same_one_changes_nothing(
    soup: tuple[SimulatedCluster, dict[str, Any]], planned: bool, later: int
) -> None:
    cluster, pair_changes = soup
    heard = report(cluster, pair_changes, sent=1, bytes_raw=10, bytes_wire=3, wire_seconds=0.5)
    first = status_of(cluster, report=heard, planned=planned)
    assert first == status_of(cluster, report=heard, planned=planned)
    second = status_of(cluster, report=heard, planned=planned, previous=first, now=NOW + timedelta(seconds=later))
    assert second == first
    assert not (told(first, "Stalled")[0] == told(first, "Reconciling")[0] == "True")


@settings(max_examples=60, deadline=None)
@given(soups())
def test_ready_means_that_every_wanted_pod_is_ready_and_no_other_is_there(
    soup: tuple[SimulatedCluster, dict[str, Any]],
) -> None:
    cluster, _ = soup
    status = ready_status(cluster)
    if told(status, "Ready")[0] != "True":
        return
    update = status["revisions"]["update"]
    assert all(cohort.revision == update for cohort in cluster.fleet.cohorts if cohort.occupied)
    for name in (Role.PREFILL, Role.DECODE):
        assert cluster.fleet.cohort(name, update).ready >= role(status, name)["desired"]
