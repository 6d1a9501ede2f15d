"""Step 4 of a pass, pods of torn groups: deleted by their uid, with the time that a pod has to end."""

from __future__ import annotations

import logging
from functools import partial

from kvferry_operator.errors import Conflict
from kvferry_operator.kube import kinds
from kvferry_operator.kube.client import Cluster
from kvferry_operator.metrics import Outcome
from kvferry_operator.observation.observed import Failure, Observed
from kvferry_operator.plan.rollout import Step
from kvferry_operator.reconcile.writes import Writes

logger = logging.getLogger(__name__)


class Recreator:
    """Raises Throttled, as `Writes.attempt` does."""

    def __init__(self, cluster: Cluster, writes: Writes) -> None:
        self._cluster = cluster
        self._writes = writes

    async def recreate(self, step: Step, observed: Observed) -> tuple[Failure, ...]:
        """Delete what the plan names; their StatefulSets make new ones. One replaced meanwhile is no failure."""
        failures = []
        for pod in step.restarts.pods:
            logger.info("deletes Pod/%s, so that its group begins anew as a whole", pod.name)
            request = partial(self._cluster.delete, kinds.POD, observed.key[0], pod.name, pod.uid)
            failed = await self._writes.attempt(kinds.POD, pod.name, Outcome.REMOVED, request)
            if failed is not None and not isinstance(failed.error, Conflict):
                failures.append(failed)
        return tuple(failures)
