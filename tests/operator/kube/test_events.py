from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from kvferry_operator.kube.client import Cluster
from kvferry_operator.kube.events import event
from kvferry_operator.kube.kinds import EVENT

NOW = datetime(2026, 5, 17, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Change:
    type: str = "Ready"
    status: str = "False"
    reason: str = "EngineFailing"
    message: str = "decode-0: image cannot be pulled"


def model(*conditions: dict[str, str], uid: str = "u-1", name: str = "tiny") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "models", "uid": uid}, "status": {"conditions": [*conditions]}}


def condition(type_: str, status: str = "True", reason: str = "Any") -> dict[str, str]:
    return {"type": type_, "status": status, "reason": reason, "lastTransitionTime": "2026-05-17T11:00:00Z"}


def ready(status: str, reason: str = "AllReady", since: str = "2026-05-17T11:00:00Z") -> dict[str, str]:
    return {**condition("Ready", status, reason), "lastTransitionTime": since}


def name(built: dict[str, Any]) -> str:
    return str(built["metadata"]["name"])


def test_the_same_change_has_the_same_name_whenever_and_by_whomever_it_is_told() -> None:
    later = datetime(2026, 5, 17, 13, 0, tzinfo=UTC)
    first = event(model(ready("True")), Change(), NOW, "pod-a")
    again = event(model(ready("True")), Change(message="in other words"), later, "pod-b")
    assert name(first) == name(again)


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (model(ready("True"), uid="u-2"), Change()),
        (model(ready("True")), Change(type="Available")),
        (model(ready("True")), Change(status="Unknown")),
        (model(ready("True")), Change(reason="Progressing")),
        (model(ready("True", reason="Other")), Change()),
        (model(ready("True", since="2026-05-17T11:30:00Z")), Change()),
        (model(), Change()),
    ],
)
def test_another_change_has_another_name(before: dict[str, Any], change: Change) -> None:
    assert name(event(before, change, NOW, "pod")) != name(event(model(ready("True")), Change(), NOW, "pod"))


@pytest.mark.parametrize(
    ("before", "change", "expected"),
    [
        (model(), Change(status="False", reason="Progressing"), "Normal"),
        (model(ready("True")), Change(status="False"), "Warning"),
        (model(ready("False")), Change(status="True"), "Normal"),
        (model(), Change(type="SpecValid", status="False"), "Warning"),
        (model(), Change(type="TransferVerified", status="Unknown", reason="Pending"), "Normal"),
        (model(), Change(type="TransferVerified", status="False", reason="FellBackToTcp"), "Warning"),
        (model(ready("True")), Change(status="False", reason="Starting"), "Normal"),
        (model(condition("Progressing")), Change(type="Progressing", status="False", reason="Complete"), "Normal"),
        (model(), Change(type="TransferVerified", status="False", reason="NotRequired"), "Normal"),
        (model(), Change(type="Stalled", status="True"), "Warning"),
        (model(), Change(type="Stalled", status="False"), "Normal"),
    ],
)
def test_what_a_user_should_look_at_is_a_warning(before: dict[str, Any], change: Change, expected: str) -> None:
    assert event(before, change, NOW, "pod")["type"] == expected


def test_names_and_notes_keep_their_limits() -> None:
    built = event(model(name="m" * 252 + "x"), Change(message="ü" * 2000), NOW, "p" * 300)
    assert len(name(built)) <= 253
    assert len(built["note"].encode()) <= 1024
    assert len(built["reportingInstance"]) <= 128


async def test_a_real_server_takes_it_once(cluster: Cluster, namespace: str) -> None:
    before = model(ready("True"))
    before["metadata"]["namespace"] = namespace
    told = event(before, Change(message="ü" * 2000), NOW, "pod")
    assert await cluster.create(told)
    assert not await cluster.create(event(before, Change(), datetime.now(UTC), "another-pod"))
    stored = await cluster.get(EVENT, namespace, name(told))
    assert stored is not None
    assert (stored["reason"], stored["type"], stored["regarding"]["name"]) == ("EngineFailing", "Warning", "tiny")
