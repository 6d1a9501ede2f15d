"""When the Secret with the key is made: nobody may look whether it is there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import builders
import rendered
from kvferry_contract import paths
from kvferry_operator.api.parse import parse
from kvferry_operator.desired.build import build
from kvferry_operator.reconcile.key_secret import key_secret, lacks_workload, waits_for_start

RAW = builders.raw()
RAW["metadata"] |= {"uid": "model-uid", "generation": 1}
MODEL = parse(RAW)
OBJECTS = build(MODEL, rendered.SETTINGS)
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def test_the_key_is_random_immutable_and_goes_with_the_model() -> None:
    one, other = key_secret(MODEL), key_secret(MODEL)
    key = one["stringData"][paths.KEY_FILE]
    assert len(bytes.fromhex(key)) == 32 and key != other["stringData"][paths.KEY_FILE]
    assert one["immutable"] is True
    assert one["metadata"]["name"] == "tiny-key"
    assert one["metadata"]["ownerReferences"][0]["uid"] == "model-uid"


def test_it_may_be_missing_while_a_workload_is() -> None:
    workloads = rendered.of_kind(OBJECTS, "StatefulSet")
    assert lacks_workload(OBJECTS, [])
    assert lacks_workload(OBJECTS, workloads[:1])
    assert not lacks_workload(OBJECTS, workloads)


def pod(age: float, states: list[dict[str, Any]], role: str = "decode") -> dict[str, Any]:
    started = (NOW - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {"labels": {"kvferry.io/role": role}},
        "status": {"startTime": started, "containerStatuses": states},
    }


WAITING = {"state": {"waiting": {"reason": "ContainerCreating"}}}
RUNNING = {"state": {"running": {}}}
CRASHED = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 1}}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(pod(30, [WAITING, WAITING]), True, id="nothing ever ran"),
        pytest.param(pod(30, []), True, id="not even reported"),
        pytest.param(pod(5, [WAITING]), False, id="a moment ago"),
        pytest.param(pod(30, [RUNNING, WAITING]), False, id="one runs"),
        pytest.param(pod(30, [CRASHED, WAITING]), False, id="one ran"),
        pytest.param(pod(30, [WAITING], "router"), False, id="mounts no key"),
        pytest.param({"metadata": {"labels": {"kvferry.io/role": "decode"}}}, False, id="has no node"),
    ],
)
def test_a_pod_that_does_not_start_may_wait_for_it(found: dict[str, Any], expected: bool) -> None:
    assert waits_for_start(found, NOW) is expected
