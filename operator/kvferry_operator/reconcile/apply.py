"""Step 4 of a pass, the objects of the plan: what is missing is created, what differs is applied, and what is as it
should be costs no request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar

from kvferry_operator.api import names
from kvferry_operator.desired.stage import Manifest
from kvferry_operator.errors import ClusterError, Conflict, Throttled
from kvferry_operator.kube import kinds
from kvferry_operator.kube.client import Cluster
from kvferry_operator.metrics import Outcome
from kvferry_operator.observation.live import controller, is_ours
from kvferry_operator.observation.observed import Failure, Observed, Results
from kvferry_operator.reconcile import drift
from kvferry_operator.reconcile.adoption import adopted
from kvferry_operator.reconcile.writes import Writes
from kvferry_operator.schedule import Key
from kvferry_operator.view.packed import Packed
from kvferry_operator.view.store import Store

JsonObject = Mapping[str, Any]
T = TypeVar("T")

AT_ONCE = 8
"""Requests of one pass that run at the same time."""
LOOKS = 3
"""So often an object may change between a look at it and the request that goes by that look."""

_REFERRING = frozenset({"RoleBinding", "StatefulSet", "Deployment"})

logger = logging.getLogger(__name__)


class Verdict(Enum):
    """What to do with one object."""

    SAME = auto()
    APPLY = auto()
    FOREIGN = auto()
    """Somebody else has the name."""
    LEAVING = auto()
    """Being deleted, or left by an earlier model of that name, hence soon to be: it is made anew once it is gone."""


def judge(
    desired: Manifest, live: JsonObject, model: JsonObject, excused: frozenset[str] = frozenset()
) -> tuple[Verdict, str]:
    """What to do with an object that is there; of one to apply, why.

    excused: paths that an apply is known to leave different.
    """
    if not is_ours(live, model):
        owner = controller(live)
        # two models of one name cannot be: the other one is gone, and the garbage collector is on its way
        earlier = owner.get("kind") == names.KIND and owner.get("name") == model["metadata"]["name"]
        return (Verdict.LEAVING if earlier else Verdict.FOREIGN), ""
    if live["metadata"].get("deletionTimestamp"):
        return Verdict.LEAVING, ""
    if (live["metadata"].get("annotations") or {}).get(drift.ANNOTATION) != drift.applied_hash(desired):
        return Verdict.APPLY, "what is wanted has changed"
    difference = next((path for path in drift.differences(desired, live) if path not in excused), "")
    return (Verdict.APPLY, f"{difference} was changed") if difference else (Verdict.SAME, "")


def waves(objects: Iterable[Manifest]) -> tuple[list[Manifest], list[Manifest]]:
    """First what others refer to, then those: nothing else needs an order, and a round trip each would take long."""
    first: list[Manifest] = []
    last: list[Manifest] = []
    for manifest in objects:
        (last if manifest["kind"] in _REFERRING else first).append(manifest)
    return first, last


class Applier:
    """Applies objects of any model. It remembers nothing but differences that the API server insists on."""

    def __init__(self, cluster: Cluster, store: Store, writes: Writes) -> None:
        self._cluster = cluster
        self._store = store
        self._writes = writes
        self._excused: dict[Key, dict[str, frozenset[str]]] = {}
        """By uid, what an apply left different: so that a value that the server writes in its own way never loops."""

    async def apply(self, objects: Sequence[Manifest], observed: Observed) -> Results:
        """All objects, those last that refer to others. A failure of one leaves the others alone.

        Raises:
            Throttled: the rest would be refused too.
        """
        live = {_place(child): child for child in observed.children}
        self._keep_excuses(observed)
        slots = asyncio.Semaphore(AT_ONCE)
        failures: list[Failure] = []
        conflicts: list[str] = []
        applied = 0

        async def one(manifest: Manifest) -> Verdict | Failure | Throttled:
            async with slots:
                try:
                    return await self._one(manifest, live.get(_place(manifest)), observed)
                except Throttled as error:
                    # not out of `gather`, which would leave the others to themselves
                    return error

        for wave in waves(objects):
            for manifest, outcome in zip(wave, await asyncio.gather(*map(one, wave)), strict=True):
                match outcome:
                    case Throttled():
                        raise outcome
                    case Failure():
                        failures.append(outcome)
                    case Verdict.FOREIGN:
                        conflicts.append(title(manifest))
                    case Verdict.APPLY:
                        applied += 1
        return Results(applied=applied, failures=tuple(failures), conflicts=tuple(conflicts))

    def forget(self, key: Key) -> None:
        """A model that is gone."""
        self._excused.pop(key, None)

    async def _one(self, manifest: Manifest, live: JsonObject | None, observed: Observed) -> Verdict | Failure:
        if live is not None:
            verdict, _ = self._judge(manifest, live, observed)
            return await self._change(manifest, observed) if verdict is Verdict.APPLY else verdict
        logger.info("creates %s", title(manifest))
        made = await self._attempt(manifest, partial(self._cluster.create, drift.stamped(manifest)))
        if made is None:
            return await self._change(manifest, observed)
        return made if isinstance(made, Failure) else self._take_in(manifest, made, observed.key)

    async def _change(self, manifest: Manifest, observed: Observed, looks: int = LOOKS) -> Verdict | Failure:
        """Looks before it changes: what was heard of an object may be old, or nothing."""
        live = await self._look(manifest)
        if isinstance(live, Failure):
            return live
        verdict, why = self._judge(manifest, live, observed)
        if verdict is not Verdict.APPLY:
            return verdict
        failed = await self._adopt(manifest, live)
        if failed is not None:
            again = looks > 1 and isinstance(failed.error, Conflict)
            return await self._change(manifest, observed, looks - 1) if again else failed
        logger.info("applies %s: %s", title(manifest), why)
        answer = await self._attempt(manifest, partial(self._cluster.apply, drift.stamped(manifest)))
        return answer if isinstance(answer, Failure) else self._take_in(manifest, answer, observed.key)

    async def _look(self, manifest: Manifest) -> Manifest | Failure:
        kind, name = kinds.of(manifest), manifest["metadata"]["name"]
        try:
            live = await self._cluster.get(kind, manifest["metadata"]["namespace"], name)
        except Throttled:
            raise
        except ClusterError as error:
            return Failure(kind.kind, name, error)
        return live or Failure(kind.kind, name, Conflict(f"{title(manifest)} went away while it was looked at"))

    async def _adopt(self, manifest: Manifest, live: Manifest) -> Failure | None:
        managers = adopted(live["metadata"].get("managedFields") or ())
        if managers is None:
            return None
        return await self._attempt(manifest, partial(self._cluster.set_managers, live, managers))

    async def _attempt(self, manifest: Manifest, request: Callable[[], Awaitable[T]]) -> T | Failure:
        return await self._writes.attempt(kinds.of(manifest), manifest["metadata"]["name"], Outcome.APPLIED, request)

    def _judge(self, manifest: Manifest, live: JsonObject, observed: Observed) -> tuple[Verdict, str]:
        excused = self._excused.get(observed.key, {}).get(live["metadata"]["uid"], frozenset())
        verdict, why = judge(manifest, live, observed.raw, excused)
        if verdict is Verdict.FOREIGN:
            self._writes.count(kinds.of(manifest), Outcome.FOREIGN)
        return verdict, why

    def _take_in(self, manifest: Manifest, answer: Manifest, key: Key) -> Verdict:
        # the next pass may come before the watch has told
        self._store.put(Packed.of(kinds.of(manifest), answer))
        left = frozenset(drift.differences(manifest, answer))
        if left:
            shown = ", ".join(sorted(left))
            logger.warning("the API server keeps %s of %s in another way than it was applied", shown, title(manifest))
            self._excused.setdefault(key, {})[answer["metadata"]["uid"]] = left
        return Verdict.APPLY

    def _keep_excuses(self, observed: Observed) -> None:
        """Only of objects that are still there."""
        excuses = self._excused.pop(observed.key, {})
        uids = {child["metadata"]["uid"] for child in observed.children}
        kept = {uid: left for uid, left in excuses.items() if uid in uids}
        if kept:
            self._excused[observed.key] = kept


def title(manifest: JsonObject) -> str:
    """For people: kind and name."""
    return "/".join(_place(manifest))


def _place(manifest: JsonObject) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]
