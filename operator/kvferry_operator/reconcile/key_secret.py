"""Step 4 of a pass, the Secret with the key that a model's pods share: made once, never read, never changed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from kvferry_contract import paths
from kvferry_operator.api import names
from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.desired import owner
from kvferry_operator.desired.stage import Manifest, shares_key
from kvferry_operator.kube import kinds
from kvferry_operator.kube.client import Cluster
from kvferry_operator.metrics import Outcome
from kvferry_operator.observation.observed import Failure, Observed
from kvferry_operator.reconcile.writes import Writes
from kvferry_operator.schedule import Key

JsonObject = Mapping[str, Any]

KEY_BYTES = 32
PATIENCE_SECONDS = 20.0
"""So long may a scheduled pod take to start its first container before the Secret is suspected to be missing."""


class KeySecrets:
    """Tries to create a model's Secret when it may be missing: the operator has no right to look.

    A Secret of that name that is there stays as it is, whoever made it.
    """

    def __init__(
        self,
        cluster: Cluster,
        writes: Writes,
        retry_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """retry_seconds: at most so often for pods that wait, which may have other reasons."""
        self._cluster = cluster
        self._writes = writes
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._tried: dict[Key, float] = {}

    async def ensure(
        self, model: DisaggregatedModel, objects: Iterable[Manifest], observed: Observed, now: datetime
    ) -> tuple[Failure, ...]:
        """
        Raises:
            Throttled: as `Writes.attempt` does.
        """
        if not shares_key(model) or not self._may_be_missing(objects, observed, now):
            return ()
        manifest = key_secret(model)
        request = partial(self._cluster.create, manifest)
        made = await self._writes.attempt(kinds.SECRET, manifest["metadata"]["name"], Outcome.APPLIED, request)
        if isinstance(made, Failure):
            return (made,)
        self._tried[observed.key] = self._clock()
        return ()

    def forget(self, key: Key) -> None:
        """A model that is gone."""
        self._tried.pop(key, None)

    def _may_be_missing(self, objects: Iterable[Manifest], observed: Observed, now: datetime) -> bool:
        if lacks_workload(objects, observed.children):
            return True
        tried = self._tried.get(observed.key)
        if tried is not None and self._clock() - tried < self._retry_seconds:
            return False
        return any(waits_for_start(pod, now) for pod in observed.pods)


def key_secret(model: DisaggregatedModel) -> Manifest:
    """With a new random key. It goes with the model, whose own it is."""
    manifest: Manifest = {
        "apiVersion": kinds.SECRET.api_version,
        "kind": kinds.SECRET.kind,
        "metadata": {
            "name": names.key(model.name),
            "namespace": model.namespace,
            "labels": names.labels(model.name, "model"),
            "annotations": {names.ANNOTATION_MODEL: model.name},
        },
        "immutable": True,
        "type": "Opaque",
        "stringData": {paths.KEY_FILE: secrets.token_hex(KEY_BYTES)},
    }
    (owned,) = owner.owned([manifest], model)
    return owned


def lacks_workload(objects: Iterable[Manifest], children: Iterable[JsonObject]) -> bool:
    """Whether a StatefulSet is to be made that is not there: its pods will mount the Secret."""
    there = {child["metadata"]["name"] for child in children if child["kind"] == kinds.STATEFUL_SET.kind}
    return any(each["kind"] == kinds.STATEFUL_SET.kind and each["metadata"]["name"] not in there for each in objects)


def waits_for_start(pod: JsonObject, now: datetime) -> bool:
    """Whether a pod of prefill or decode has a node for a while, but not one container that ever ran."""
    if (pod["metadata"].get("labels") or {}).get(names.LABEL_ROLE) not in ("prefill", "decode"):
        return False
    status = pod.get("status") or {}
    started = status.get("startTime")
    if not started or (now - datetime.fromisoformat(started).astimezone(UTC)).total_seconds() < PATIENCE_SECONDS:
        return False
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return not any("waiting" not in (each.get("state") or {}) or each.get("lastState") for each in containers)
