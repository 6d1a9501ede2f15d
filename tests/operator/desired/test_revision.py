"""What makes new pods, and what must not."""

from __future__ import annotations

from typing import Any

import pytest

import builders
import rendered
from kvferry_operator.desired.build import build
from kvferry_operator.desired.revision import revision
from kvferry_operator.desired.settings import Images, Settings

BASE = revision(builders.model(), rendered.SETTINGS)
SAME: list[dict[str, Any]] = [
    {"decode.replicas": 7, "prefill.replicas": 3},
    {"decode.scaling": {"mode": "External", "min": 1, "max": 9}},
    {"ratio": {"min": "1", "max": "2"}},
    {"prefill.rollout.maxSurge": 3},
    {"prefill.restart.maxRestarts": 1},
    {"decode.drain.timeoutSeconds": 7},
    {"decode.disruption.budget": "None"},
    {"placement.policy": "Required"},
    {"router.replicas": 4, "router.minPromptTokens": 9},
    {"security.networkPolicy": False},
    {"transfer.verify.intervalSeconds": 60},
    {"paused": True},
    {"transfer.compression.method": "none", "engine.port": 8000, "decode.parallelism.tensor": 1},
]
OTHER: list[dict[str, Any]] = [
    {"model.uri": "hf://a/b"},
    {"model.servedName": "x"},
    {"engine.image": "x:2"},
    {"engine.args": ["--x"]},
    {"prefill.parallelism.pipeline": 2},
    {"decode.parallelism.pipeline": 2},
    {"decode.resources.limits": {"cpu": "1"}},
    {"prefill.rdma": {"mode": "devicePlugin", "resourceName": "rdma/hca"}},
    {"transfer.compression.method": "fp8"},
    {"transfer.bufferBytes": "64Mi"},
    {"decode.template": {"spec": {"nodeSelector": {"a": "b"}}}},
    {"sidecar.env": [{"name": "A", "value": "1"}]},
    {"restartID": "again"},
]


@pytest.mark.parametrize("changes", SAME, ids=str)
def test_no_pod_is_replaced(changes: dict[str, Any]) -> None:
    assert revision(builders.model(changes), rendered.SETTINGS) == BASE


@pytest.mark.parametrize("changes", OTHER, ids=str)
def test_every_pod_is_replaced(changes: dict[str, Any]) -> None:
    assert revision(builders.model(changes), rendered.SETTINGS) != BASE


def test_changes_are_told_apart() -> None:
    assert len({revision(builders.model(changes), rendered.SETTINGS) for changes in OTHER}) == len(OTHER)


def test_a_release_with_other_images_replaces_pods_that_use_them() -> None:
    newer = Settings(images=Images.of_release("9.9.9"))
    assert revision(builders.model(), newer) != BASE
    pinned = builders.model({"engine.image": "a:1", "sidecar.image": "b:1"})
    assert revision(pinned, newer) == revision(pinned, rendered.SETTINGS)


def test_the_revision_of_an_object_is_stable() -> None:
    # a change here restarts every pod of every user
    assert BASE == "2f03b998"


def test_both_roles_share_the_revision() -> None:
    sets = rendered.of_kind(build(builders.model(), rendered.SETTINGS), "StatefulSet")
    assert {item["metadata"]["labels"]["kvferry.io/revision"] for item in sets} == {BASE}


def test_a_new_drain_reaches_new_pods_by_a_new_configuration() -> None:
    # a ConfigMap that cannot change must not keep its name when its content does
    def maps(seconds: int) -> dict[str, str]:
        objects = build(builders.model({"decode.drain.timeoutSeconds": seconds}), rendered.SETTINGS)
        return {
            item["metadata"]["name"]: item["data"]["config.json"] for item in rendered.of_kind(objects, "ConfigMap")
        }

    one, other = maps(10), maps(20)
    assert all(one[name] == other[name] for name in one.keys() & other.keys())
    assert len(one.keys() & other.keys()) == 1


def test_pods_are_replaced_by_new_workloads_only() -> None:
    for item in rendered.of_kind(build(builders.model(), rendered.SETTINGS), "StatefulSet"):
        assert item["spec"]["updateStrategy"] == {"type": "OnDelete"}
