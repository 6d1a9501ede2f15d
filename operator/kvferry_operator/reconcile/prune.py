"""Step 4 of a pass, what is no longer wanted: removed by its uid, never by its name alone."""

from __future__ import annotations

from functools import partial

from kvferry_operator.kube.client import Cluster
from kvferry_operator.metrics import Outcome
from kvferry_operator.observation.observed import Failure, Observed
from kvferry_operator.plan.rollout import Step
from kvferry_operator.reconcile.writes import Writes


class Pruner:
    """Raises Throttled, as `Writes.attempt` does."""

    def __init__(self, cluster: Cluster, writes: Writes) -> None:
        self._cluster = cluster
        self._writes = writes

    async def prune(self, step: Step, observed: Observed) -> tuple[Failure, ...]:
        """Remove what the plan names and nothing else."""
        failures = []
        for ref in step.prune:
            request = partial(self._cluster.delete, ref.kind, observed.key[0], ref.name, ref.uid)
            failed = await self._writes.attempt(ref.kind, ref.name, Outcome.REMOVED, request)
            failures += [failed] if failed else []
        return tuple(failures)
