"""Groups of pipeline stages that lose one, on a real API server: made anew as a whole, at a pace, and nobody else."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

import background_kubelet
import control_plane as planes
import operator_process
from eventually import eventually
from kvferry_operator.api import names
from kvferry_operator.kube import kinds
from model_namespace import ModelNamespace
from operator_process import OperatorProcess

pytestmark = pytest.mark.slow

LONG = 3600
STAGED: dict[str, Any] = {
    "decode.replicas": 2,
    "decode.parallelism": {"pipeline": 2},
    "transfer.verify.required": False,
}
Uids = dict[str, str]


@pytest.fixture(scope="module", autouse=True)
def nodes(control_plane: planes.ControlPlane) -> Iterator[None]:
    """Pods become ready, and stay so whatever befalls the others of their group."""
    with background_kubelet.playing(control_plane.api.access, {"torn": {}}):
        yield


@pytest.fixture
def models(control_plane: planes.ControlPlane) -> ModelNamespace:
    return ModelNamespace(control_plane, "torn")


@contextlib.contextmanager
def operator(models: ModelNamespace) -> Iterator[OperatorProcess]:
    with operator_process.running(models.kubeconfig, models.name) as running:
        running.wait_ready()
        yield running


def serve(models: ModelNamespace, restart: dict[str, Any] | None = None) -> None:
    models.create({**STAGED, "decode.restart": restart or {}})
    models.wait_condition("Ready", "True")
    eventually(lambda: len(lives(models)) == 2, "it is written down that both groups are whole")


def lives(models: ModelNamespace) -> dict[str, Any]:
    """Of decode's groups."""
    sets = models.objects("StatefulSet")
    texts = [each["metadata"]["annotations"].get(names.ANNOTATION_LIVES) for each in sets]
    (text,) = [text for text in texts if text] or ["{}"]
    found: dict[str, Any] = json.loads(text)
    return found


def group(models: ModelNamespace, ordinal: int) -> Uids:
    return {name: uid for name, uid in models.uids("Pod", role="decode").items() if name.endswith(f"-{ordinal}")}


def others(models: ModelNamespace) -> Uids:
    """All pods but those of decode's first group."""
    return {name: uid for name, uid in models.uids("Pod").items() if name not in group(models, 0)}


def lose_stage(models: ModelNamespace, stage: int = 1) -> None:
    """At once, as when a node is taken out of a cluster; the pod was made a second ago at least."""
    time.sleep(2.0)
    (name,) = (name for name in group(models, 0) if f"-s{stage}-" in name)
    models.plane.api.delete(f"{models.path(kinds.POD, name)}?gracePeriodSeconds=0")


def wait_anew(models: ModelNamespace, before: Uids) -> None:
    eventually(
        lambda: len(now := group(models, 0)) == 2 and not set(now.values()) & set(before.values()),
        f"every stage of the group is another pod than in {before}",
    )
    models.wait_condition("Ready", "True")


def pod_deletions(models: ModelNamespace, since: int) -> int:
    return sum(each.verb == "delete" and each.resource == "pods" for each in models.requests(since))


@pytest.mark.parametrize("stage", [0, 1])
def test_a_lost_stage_takes_its_group_with_it_once_and_no_other(models: ModelNamespace, stage: int) -> None:
    with operator(models):
        serve(models)
        before, rest = group(models, 0), others(models)
        mark = models.plane.audit_position()
        lose_stage(models, stage)
        wait_anew(models, before)
        assert others(models) == rest
        eventually(lambda: lives(models)["0"].keys() == {"since", "count", "at"}, "the group counts as whole again")
        models.wait_quiet()
        after = group(models, 0)
        time.sleep(3.0)
        assert group(models, 0) == after and others(models) == rest
        assert pod_deletions(models, mark) == 1, "of the one pod that was left"
        (told,) = models.events(reason="GroupRestarting")
        assert told["note"].endswith(f"its stage {stage} was lost")


def test_the_second_time_waits_for_its_pause_through_a_restart_of_the_operator(models: ModelNamespace) -> None:
    with operator(models):
        serve(models, {"backoffSeconds": LONG})
        first = group(models, 0)
        lose_stage(models)
        wait_anew(models, first)
        eventually(lambda: "phase" not in lives(models)["0"], "the group counts as whole again")
        second = group(models, 0)
        lose_stage(models)
        models.wait_condition("DecodeReady", "False", "GroupBackOff")
    mark = models.plane.audit_position()
    with operator(models):
        models.wait_quiet()
        assert models.condition("DecodeReady")["reason"] == "GroupBackOff"
        assert pod_deletions(models, mark) == 0
        kept = {name: uid for name, uid in second.items() if "-s0-" in name}
        assert kept.items() <= group(models, 0).items()
        models.edit({"decode": {"restart": {"backoffSeconds": 20}}})
        wait_anew(models, second)
        assert lives(models)["0"]["count"] == 2


def test_at_last_a_group_is_left_as_it_is_until_a_person_begins_it_anew(models: ModelNamespace) -> None:
    with operator(models):
        serve(models, {"maxRestarts": 0})
        before, rest = group(models, 0), others(models)
        lose_stage(models)
        models.wait_condition("Stalled", "True", "RestartsExhausted")
        models.wait_quiet()
        kept = {name: uid for name, uid in before.items() if "-s0-" in name}
        assert kept.items() <= group(models, 0).items()
        (told,) = models.events(reason="RestartsExhausted")
        command = told["note"].partition("kubectl ")[2].split()
        assert told["type"] == "Warning" and command[:2] == ["delete", "pod"]
        # kubectl would wait for ever where a pod of the same name comes back before it has looked twice
        models.plane.kubectl(*command, "--wait=false", "-n", models.name)
        wait_anew(models, before)
        assert others(models) == rest
