"""Who owns the number of replicas, as a real API server keeps the books of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import control_plane as planes
from builders import raw
from kvferry_operator.api import names
from kvferry_operator.api.parse import parse
from kvferry_operator.errors import Conflict
from kvferry_operator.kube import kinds
from kvferry_operator.kube.client import Cluster, connect
from kvferry_operator.observation.observed import Observed
from kvferry_operator.plan.rollout import Step, next_step
from kvferry_operator.plan.scaling import SCALE_MANAGER
from rendered import SETTINGS

WORKLOADS = "/apis/apps/v1/namespaces/{}/statefulsets"
MODELS = "/apis/kvferry.io/v1alpha1/namespaces/{}/disaggregatedmodels"


@pytest.fixture
async def cluster(control_plane: planes.ControlPlane) -> AsyncIterator[Cluster]:
    async with connect(control_plane.kubeconfig) as opened:
        yield opened


class Model:
    """One object in a namespace of its own, and passes over its workloads."""

    def __init__(self, plane: planes.ControlPlane, cluster: Cluster) -> None:
        self.namespace = plane.namespace("scaling")
        self.api = plane.api
        self.cluster = cluster
        self.before_hand_over: Callable[[], None] = lambda: None

    def write(self, changes: dict[str, Any]) -> None:
        manifest = raw(changes)
        manifest["metadata"]["namespace"] = self.namespace
        self.api.apply(f"{MODELS.format(self.namespace)}/tiny", manifest)

    async def take_step(self) -> Step:
        found = self.api.get(f"{MODELS.format(self.namespace)}/tiny")
        children = await self.cluster.list(kinds.STATEFUL_SET, self.namespace, f"{names.LABEL_MODEL}=tiny")
        step = next_step(
            parse(found), Observed(raw=found, children=tuple(children), pods=()), SETTINGS, datetime.now(UTC)
        )
        self.before_hand_over()
        for manifest in step.hand_overs:
            with contextlib.suppress(Conflict):
                await self.cluster.apply(manifest, manager=SCALE_MANAGER)
        for manifest in step.objects:
            if kinds.of(manifest) == kinds.STATEFUL_SET:
                await self.cluster.apply(manifest)
        for scale in step.scales:
            await self.cluster.scale(self.namespace, scale.name, scale.replicas)
        return step

    async def come_to_rest(self) -> set[int]:
        """Steps until no number is left to hand over; the StatefulSet's controller writes too. Gives decode's numbers
        on the way."""
        seen: set[int] = set()
        for _ in range(100):
            step = await self.take_step()
            seen |= set(self.replicas("decode").values())
            if not step.hand_overs and decode_replicas(step) == [None] * len(self.replicas("decode")):
                return seen
            await asyncio.sleep(0.1)
        raise AssertionError("the number was never handed over")

    def replicas(self, role: str) -> dict[str, int]:
        """By the workload's stage."""
        items = self.api.get(WORKLOADS.format(self.namespace))["items"]
        ours = [item for item in items if item["metadata"]["labels"][names.LABEL_ROLE] == role]
        return {item["metadata"]["labels"][names.LABEL_STAGE]: item["spec"]["replicas"] for item in ours}

    def autoscale(self, role: str, replicas: int, stage: str = "0") -> None:
        """As an autoscaler writes it: through the scale subresource of the workload."""
        items = self.api.get(WORKLOADS.format(self.namespace))["items"]
        wanted = {names.LABEL_ROLE: role, names.LABEL_STAGE: stage}.items()
        (name,) = (item["metadata"]["name"] for item in items if wanted <= item["metadata"]["labels"].items())
        self.api.merge(f"{WORKLOADS.format(self.namespace)}/{name}/scale", {"spec": {"replicas": replicas}})

    def owners(self, role: str) -> set[str]:
        """Managers of the first stage's `spec.replicas`."""
        items = self.api.get(WORKLOADS.format(self.namespace))["items"]
        (item,) = (
            each
            for each in items
            if each["metadata"]["labels"][names.LABEL_ROLE] == role
            and each["metadata"]["labels"][names.LABEL_STAGE] == "0"
        )
        return {
            entry["manager"]
            for entry in item["metadata"]["managedFields"]
            if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
        }


@pytest.fixture
def model(control_plane: planes.ControlPlane, cluster: Cluster) -> Model:
    return Model(control_plane, cluster)


def decode_replicas(step: Step) -> list[Any]:
    sets = [each for each in step.objects if each["kind"] == "StatefulSet"]
    return [each["spec"].get("replicas") for each in sets if "-decode-" in each["metadata"]["name"]]


EXTERNAL = {"decode.replicas": 4, "decode.scaling": {"mode": "External"}}


async def test_an_autoscalers_number_stays_and_no_apply_mentions_it(model: Model) -> None:
    """Case 10, autoscaling on: it starts with the object's number, and drops to the default at no time."""
    model.write(EXTERNAL)
    assert await model.come_to_rest() == {4} and model.owners("decode") == {SCALE_MANAGER}
    model.autoscale("decode", 6)
    for _ in range(20):
        step = await model.take_step()
        assert decode_replicas(step) == [None] and not (step.scales or step.hand_overs)
    assert model.replicas("decode") == {"0": 6} and names.MANAGER not in model.owners("decode")


async def test_without_autoscaling_the_objects_number_comes_back(model: Model) -> None:
    """Case 10, autoscaling off."""
    model.write({"decode.replicas": 2})
    await model.take_step()
    model.autoscale("decode", 4)
    await model.take_step()
    assert model.replicas("decode") == {"0": 2} and model.owners("decode") == {names.MANAGER}


async def test_the_number_survives_every_switch_between_static_and_external(model: Model) -> None:
    model.write({"decode.replicas": 4})
    await model.take_step()
    model.write({**EXTERNAL, "decode.replicas": 1})
    assert await model.come_to_rest() == {4}, "switching over shrinks nothing"
    model.autoscale("decode", 7)
    await model.take_step()
    model.write({"decode.replicas": 3})
    await model.take_step()
    assert model.replicas("decode") == {"0": 3} and model.owners("decode") == {names.MANAGER}
    model.write(EXTERNAL)
    assert await model.come_to_rest() == {3}


async def test_a_number_written_while_it_is_handed_over_is_not_undone(model: Model) -> None:
    model.write(EXTERNAL)
    await model.take_step()
    model.before_hand_over = lambda: model.autoscale("decode", 9)
    await model.take_step()
    assert model.replicas("decode") == {"0": 9}


async def test_later_stages_follow_the_first_and_bounds_are_kept(model: Model) -> None:
    model.write({**EXTERNAL, "decode.scaling": {"mode": "External", "max": 5}, "decode.parallelism": {"pipeline": 2}})
    await model.come_to_rest()
    model.autoscale("decode", 3)
    await model.take_step()
    assert model.replicas("decode") == {"0": 3, "1": 3}
    model.autoscale("decode", 9)
    await model.take_step()
    assert model.replicas("decode") == {"0": 5, "1": 5}
