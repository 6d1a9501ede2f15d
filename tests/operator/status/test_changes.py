"""Which changes are news."""

from __future__ import annotations

from typing import Any

from builders import raw
from kvferry_operator.status.changes import changes
from model_statuses import ready_cluster, ready_status, status_of
from simulated_cluster import SimulatedCluster


def status(**conditions: tuple[str, str]) -> dict[str, Any]:
    entries = [{"type": kind, "status": is_, "reason": why, "message": "m"} for kind, (is_, why) in conditions.items()]
    return {"conditions": entries}


def test_another_reason_is_news_and_another_message_is_not() -> None:
    before, after = status(DecodeReady=("False", "Starting")), status(DecodeReady=("False", "CrashLoopBackOff"))
    (change,) = changes(before, after)
    assert (change.type, change.status, change.reason, change.message) == (
        "DecodeReady",
        "False",
        "CrashLoopBackOff",
        "m",
    )
    after["conditions"][0]["message"] = "another"
    assert changes(after, status(DecodeReady=("False", "CrashLoopBackOff"))) == ()


def test_one_cause_is_told_once_by_the_condition_that_it_belongs_to() -> None:
    after = status(
        Ready=("False", "CrashLoopBackOff"),
        Reconciling=("False", "Stalled"),
        Stalled=("True", "CrashLoopBackOff"),
        DecodeReady=("False", "CrashLoopBackOff"),
    )
    assert [change.type for change in changes(status(Ready=("True", "AsAskedFor")), after)] == ["DecodeReady"]


def test_a_new_object_is_told_to_be_installed_and_nothing_else() -> None:
    first = status_of(SimulatedCluster(raw()))
    assert [(change.type, change.reason) for change in changes({}, first)] == [("Progressing", "Installing")]


def test_becoming_ready_is_told() -> None:
    cluster = ready_cluster(raw())
    before = status_of(SimulatedCluster(raw()))
    told = {change.type: change.reason for change in changes(before, ready_status(cluster))}
    assert told["Ready"] == "AsAskedFor" and told["TransferVerified"] == "Verified"


def test_the_same_status_is_no_news() -> None:
    found = ready_status(ready_cluster(raw()))
    assert changes(found, found) == ()
