"""Step 6 of a pass: what changed is told as Events, then written into status, and only if it differs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from kvferry_operator import served_schema
from kvferry_operator.api import names
from kvferry_operator.desired.stage import Manifest
from kvferry_operator.errors import ClusterError, Refused, Throttled
from kvferry_operator.kube import kinds
from kvferry_operator.kube.client import Cluster
from kvferry_operator.metrics import Outcome
from kvferry_operator.observation.observed import Observed
from kvferry_operator.reconcile.steps import PassStep
from kvferry_operator.reconcile.writes import Writes
from kvferry_operator.schedule import Key
from kvferry_operator.view.packed import Packed
from kvferry_operator.view.store import Store

JsonObject = Mapping[str, Any]

MANAGER = f"{names.MANAGER}-status"
"""Of its own, so that applying children and status never undo each other."""

logger = logging.getLogger(__name__)


class Publisher:
    """Events go first: they have names that follow from what they say, so a crash in between repeats or loses none."""

    def __init__(self, cluster: Cluster, store: Store, writes: Writes) -> None:
        self._cluster = cluster
        self._store = store
        self._writes = writes
        self._left: dict[Key, tuple[JsonObject, JsonObject]] = {}
        """What was applied, and what the server made of it where that differs: it is not applied again."""

    async def publish(self, observed: Observed, status: JsonObject, events: Iterable[Manifest]) -> None:
        """
        Raises:
            ClusterError: the status could not be written. Events that cannot be are left out: they are a courtesy.
        """
        key = observed.key
        if status == observed.status or self._left.get(key) == (status, observed.status):
            return
        for event in events:
            await self._tell(event)
        try:
            answer = await self._write(observed, status)
        except Refused:
            known = await self._known(status)
            if known == status:
                raise
            answer = await self._write(observed, known)
        self._store.put(Packed.of(kinds.MODEL, answer))
        kept = answer.get("status") or {}
        if kept == status:
            self._left.pop(key, None)
        else:
            self._left[key] = (status, kept)

    def forget(self, key: Key) -> None:
        """A model that is gone."""
        self._left.pop(key, None)

    async def _write(self, observed: Observed, status: JsonObject) -> Manifest:
        namespace, name = observed.key
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            # with its uid, so that a status never lands on a later object of the same name
            "metadata": {"name": name, "namespace": namespace, "uid": observed.uid},
            "status": status,
        }
        request = partial(self._cluster.apply, manifest, subresource="status", manager=MANAGER)
        return await self._writes.send(PassStep.WRITE, kinds.MODEL, name, Outcome.APPLIED, request)

    async def _known(self, status: JsonObject) -> JsonObject:
        """Without the fields that an old CRD does not know, since it refuses a status for one of them."""
        schema = await self._cluster.model_schema() or {}
        kept: JsonObject = served_schema.known({"status": status}, schema).get("status") or {}
        return kept

    async def _tell(self, event: Manifest) -> None:
        request = partial(self._cluster.create, event)
        try:
            await self._writes.send(PassStep.WRITE, kinds.EVENT, event["metadata"]["name"], Outcome.APPLIED, request)
        except Throttled:
            raise
        except ClusterError as error:
            logger.warning("an Event is not told: %s", error)
