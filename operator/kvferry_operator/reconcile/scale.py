"""Step 4 of a pass, numbers of StatefulSets that are not part of an apply: of old revisions, and of autoscalers."""

from __future__ import annotations

from functools import partial

from kvferry_operator.errors import Conflict
from kvferry_operator.kube import kinds
from kvferry_operator.kube.client import Cluster
from kvferry_operator.metrics import Outcome
from kvferry_operator.observation.observed import Failure, Observed
from kvferry_operator.plan.rollout import Step
from kvferry_operator.plan.scaling import SCALE_MANAGER
from kvferry_operator.reconcile.writes import Writes
from kvferry_operator.view.packed import Packed
from kvferry_operator.view.store import Store


class Scaler:
    """Both raise Throttled, as `Writes.attempt` does."""

    def __init__(self, cluster: Cluster, store: Store, writes: Writes) -> None:
        self._cluster = cluster
        self._store = store
        self._writes = writes

    async def hand_over(self, step: Step) -> tuple[Failure, ...]:
        """Leave numbers to autoscalers. One that was written meanwhile is no failure: the next pass goes by it."""
        failures = []
        for manifest in step.hand_overs:
            request = partial(self._cluster.apply, manifest, manager=SCALE_MANAGER)
            name = manifest["metadata"]["name"]
            answer = await self._writes.attempt(kinds.STATEFUL_SET, name, Outcome.APPLIED, request)
            if not isinstance(answer, Failure):
                self._store.put(Packed.of(kinds.STATEFUL_SET, answer))
            elif not isinstance(answer.error, Conflict):
                failures.append(answer)
        return tuple(failures)

    async def scale(self, step: Step, observed: Observed) -> tuple[Failure, ...]:
        """Give workloads another size and leave them as they are otherwise."""
        failures = []
        for each in step.scales:
            request = partial(self._cluster.scale, observed.key[0], each.name, each.replicas)
            failed = await self._writes.attempt(kinds.STATEFUL_SET, each.name, Outcome.SCALED, request)
            failures += [failed] if failed else []
        return tuple(failures)
