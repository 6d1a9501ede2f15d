"""Step 4 of a pass: what the plan says is done, in an order in which each part finds what it needs."""

from __future__ import annotations

from datetime import datetime

from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.kube.client import Cluster
from kvferry_operator.observation.observed import Observed, Results
from kvferry_operator.plan.rollout import Step
from kvferry_operator.reconcile.apply import Applier
from kvferry_operator.reconcile.key_secret import KeySecrets
from kvferry_operator.reconcile.prune import Pruner
from kvferry_operator.reconcile.recreate import Recreator
from kvferry_operator.reconcile.scale import Scaler
from kvferry_operator.reconcile.writes import Writes
from kvferry_operator.schedule import Key
from kvferry_operator.view.store import Store


class Executor:
    """Everything that a pass changes besides status and Events."""

    def __init__(self, cluster: Cluster, store: Store, writes: Writes, retry_seconds: float) -> None:
        """retry_seconds: see `KeySecrets`."""
        self._key_secrets = KeySecrets(cluster, writes, retry_seconds)
        self._applier = Applier(cluster, store, writes)
        self._scaler = Scaler(cluster, store, writes)
        self._recreator = Recreator(cluster, writes)
        self._pruner = Pruner(cluster, writes)

    async def execute(self, model: DisaggregatedModel, step: Step, observed: Observed, now: datetime) -> Results:
        """A failure of one object leaves the others alone.

        Raises:
            Throttled: the API server takes nothing more for now; what is left is done by a later pass.
        """
        handed = await self._scaler.hand_over(step)
        keyed = await self._key_secrets.ensure(model, step.objects, observed, now)
        applied = await self._applier.apply(step.objects, observed)
        scaled = await self._scaler.scale(step, observed)
        kept = await self._recreator.recreate(step, observed)
        left = await self._pruner.prune(step, observed)
        return Results(
            applied=applied.applied,
            pruned=len(step.prune) - len(left),
            failures=(*handed, *keyed, *applied.failures, *scaled, *kept, *left),
            conflicts=applied.conflicts,
        )

    def forget(self, key: Key) -> None:
        """A model that is gone."""
        self._key_secrets.forget(key)
        self._applier.forget(key)
