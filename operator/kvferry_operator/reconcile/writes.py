"""The door through which every request goes that changes the cluster: told before, counted after, and shut once
another operator may act."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from kvferry_operator.errors import ClusterError, NotLeading, Throttled
from kvferry_operator.kube.kinds import Kind
from kvferry_operator.metrics import Metrics, Outcome
from kvferry_operator.observation.observed import Failure
from kvferry_operator.reconcile.steps import PassStep, Trace

T = TypeVar("T")


class Writes:
    """Knows no request itself."""

    def __init__(self, metrics: Metrics, trace: Trace, leads: Callable[[], bool]) -> None:
        """leads: whether no other operator acts."""
        self._metrics = metrics
        self._trace = trace
        self._leads = leads

    async def send(
        self, step: PassStep, kind: Kind, name: str, outcome: Outcome, request: Callable[[], Awaitable[T]]
    ) -> T:
        """What `request` gives. outcome: what it is counted as when it succeeds.

        Raises:
            NotLeading: nothing was sent.
            ClusterError: counted as well.
        """
        if not self._leads():
            raise NotLeading(f"{kind.kind} {name} is not written: another operator may act by now")
        self._trace(step, f"{kind.kind}/{name}")
        try:
            answer = await request()
        except ClusterError as error:
            self.count(kind, Outcome.of(error))
            raise
        self.count(kind, outcome)
        return answer

    async def attempt(
        self, kind: Kind, name: str, outcome: Outcome, request: Callable[[], Awaitable[T]]
    ) -> T | Failure:
        """The same in step 4, where the failure of one object leaves the others alone.

        Raises:
            Throttled: the others would be refused too.
        """
        try:
            return await self.send(PassStep.APPLY, kind, name, outcome, request)
        except Throttled:
            raise
        except ClusterError as error:
            return Failure(kind.kind, name, error)

    def count(self, kind: Kind, outcome: Outcome) -> None:
        self._metrics.wrote(kind, outcome)
