"""Lists fill the store, heal what watches did not tell, and find out a watch that is deaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from kvferry_operator.api import names
from kvferry_operator.errors import Unreachable
from kvferry_operator.kube import kinds
from kvferry_operator.kube.kinds import Kind
from kvferry_operator.metrics import WATCHED, Metrics
from kvferry_operator.schedule import Key
from kvferry_operator.view import resync
from kvferry_operator.view.packed import Packed
from kvferry_operator.view.resync import Resync
from kvferry_operator.view.store import Store

TINY = ("models", "tiny")
Manifest = dict[str, Any]


class Lists:
    """In place of the cluster: what it would list. failing: a kind that cannot be."""

    def __init__(self) -> None:
        self.objects: dict[Kind, list[Manifest]] = {}
        self.failing: Kind | None = None
        self.asked: list[tuple[Kind, str | None, str]] = []

    async def collect(
        self, kind: Kind, namespace: str | None, selector: str, keep: Callable[[Manifest], Packed]
    ) -> list[Packed]:
        self.asked.append((kind, namespace, selector))
        if kind is self.failing:
            raise Unreachable("no answer")
        return [keep(each) for each in self.objects.get(kind, ())]


def model() -> Manifest:
    return {"metadata": {"namespace": "models", "name": "tiny", "uid": "m", "resourceVersion": "1", "generation": 1}}


def pod(version: int) -> Manifest:
    labels = {names.LABEL_MODEL: "tiny"}
    return {
        "metadata": {"namespace": "models", "name": "p", "uid": "p", "resourceVersion": str(version), "labels": labels}
    }


class World:
    """One model and its pod, as the store and the cluster know them."""

    def __init__(self, *namespaces: str) -> None:
        self.lists, self.store, self.metrics = Lists(), Store(), Metrics()
        self.marked: list[Key] = []
        self.resync = Resync(cast(Any, self.lists), self.store, self.metrics, self.marked.append, namespaces, 300.0)
        self.lists.objects = {kinds.MODEL: [model()], kinds.POD: [pod(5)]}

    @property
    def versions(self) -> list[str]:
        return [each["metadata"]["resourceVersion"] for each in self.store.pods(TINY)]

    def missed(self, kind: Kind) -> float:
        value = self.metrics.registry.get_sample_value("kvferry_operator_watch_missed_total", {"kind": kind.kind})
        assert value is not None
        return value


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "GRACE_SECONDS", 0.0)


async def test_everything_is_read_before_the_first_pass() -> None:
    world = World()
    await world.resync.fill()
    assert world.versions == ["5"]
    assert world.marked == [TINY]
    assert {kind for kind, _, _ in world.lists.asked} == set(WATCHED)
    assert all(selector == names.LABEL_MODEL for kind, _, selector in world.lists.asked if kind is not kinds.MODEL)
    assert world.missed(kinds.POD) == 0


async def test_only_the_given_namespaces_are_read() -> None:
    world = World("models", "more")
    await world.resync.fill()
    assert {namespace for _, namespace, _ in world.lists.asked} == {"models", "more"}


async def test_what_is_known_is_no_difference() -> None:
    world = World()
    await world.resync.fill()
    await world.resync.compare(WATCHED)
    assert world.marked == [TINY]
    assert world.resync.deaf == ()


@pytest.mark.parametrize("listed", [[pod(6)], []], ids=["changed", "gone"])
async def test_what_a_watch_did_not_tell_is_healed_and_counted(listed: list[Manifest]) -> None:
    world = World()
    await world.resync.fill()
    world.lists.objects[kinds.POD] = listed
    await world.resync.compare([kinds.POD])
    assert world.versions == [each["metadata"]["resourceVersion"] for each in listed]
    assert world.marked == [TINY, TINY]
    assert world.missed(kinds.POD) == 1


async def test_a_watch_is_deaf_when_two_rounds_find_something_new() -> None:
    world = World()
    await world.resync.fill()
    for version, deaf in ((6, ()), (7, (kinds.POD,)), (7, ())):
        world.lists.objects[kinds.POD] = [pod(version)]
        await world.resync.compare([kinds.POD])
        assert world.resync.deaf == deaf


async def test_a_list_that_fails_is_no_end_and_no_sign_of_life() -> None:
    world = World()
    await world.resync.fill()
    heard = world.resync.heard
    world.lists.failing = kinds.POD
    await world.resync.compare([kinds.POD])
    assert world.resync.heard == heard
    world.lists.objects[kinds.MODEL] = []
    await world.resync.compare([kinds.POD, kinds.MODEL])
    assert list(world.store.models()) == []
    assert world.marked[-1] == TINY, "so that a pass forgets it"
