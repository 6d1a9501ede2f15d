"""One pass over one model, in numbered steps. Everything is derived from what is in the cluster now."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

from kvferry_operator import logs
from kvferry_operator.api.parse import parse
from kvferry_operator.api.types import DisaggregatedModel, Mode
from kvferry_operator.desired.settings import Settings
from kvferry_operator.errors import ClusterError, SpecInvalid
from kvferry_operator.kube import events
from kvferry_operator.metrics import Metrics, PassResult
from kvferry_operator.observation.observed import Observed, Results
from kvferry_operator.plan import rollout
from kvferry_operator.reconcile.execute import Executor
from kvferry_operator.reconcile.publish import Publisher
from kvferry_operator.reconcile.steps import PassStep, Trace
from kvferry_operator.schedule import Key
from kvferry_operator.status.changes import changes
from kvferry_operator.status.compute import compute
from kvferry_operator.view.observe import Observer, ready_routers
from kvferry_operator.view.reports import Reports

CONFLICT_SECONDS = 30.0
"""A foreign object in our way is looked at again after this."""
UNREAD_SECONDS = 30.0
"""How often routers of an object are asked that cannot be read."""

logger = logging.getLogger(__name__)


class Reconciler:
    """Brings children and status of a model to what the object says."""

    def __init__(
        self,
        settings: Settings,
        observer: Observer,
        reports: Reports,
        executor: Executor,
        publisher: Publisher,
        metrics: Metrics,
        trace: Trace,
        instance: str,
    ) -> None:
        """instance: this process, as Events name it."""
        self._settings = settings
        self._observer = observer
        self._reports = reports
        self._executor = executor
        self._publisher = publisher
        self._metrics = metrics
        self._trace = trace
        self._instance = instance

    async def reconcile(self, key: Key) -> float | None:
        """One pass. Gives the seconds until the next one, None when a watch will tell.

        Raises:
            ClusterError: something could not be done. What could be is done, and status tells of the rest.
        """
        began = time.monotonic()
        result = PassResult.DEFECT
        with logs.fields(namespace=key[0], name=key[1]):
            try:
                result, again_after = await self._pass(key)
            except ClusterError as error:
                result = PassResult.FAILED
                logger.warning("the pass failed: %s", error)
                raise
            finally:
                self._metrics.passed(result, time.monotonic() - began)
        return again_after

    async def _pass(self, key: Key) -> tuple[PassResult, float | None]:
        self._trace(PassStep.LOAD, "")
        observed = await self._observer.observe(key)
        if observed is None:
            self._forget(key)
            return PassResult.GONE, None
        now = datetime.now(UTC)
        try:
            self._trace(PassStep.PARSE, "")
            model = parse(observed.raw)
            step = None if model.spec.paused else self._plan(model, observed, now)
        except SpecInvalid as invalid:
            # what runs stays as it is
            if not self._follow_routers(observed, None):
                await self._tell(observed, None, invalid, None, Results(), now)
            return PassResult.INVALID, None
        awaits_report = self._follow_routers(observed, model)
        results = Results()
        if step is not None:
            self._trace(PassStep.APPLY, "")
            results = await self._executor.execute(model, step, observed, now)
            if _all_made(observed, results):
                # told by the next pass, with what has become of them: of many new models, all get their children first
                return PassResult.OK, 0.0
        # its arrival means another pass, which would take back what is told without it
        if not awaits_report:
            await self._tell(observed, model, None, step, results, now)
        if results.failures:
            raise results.failures[0].error
        return (PassResult.OK if step else PassResult.PAUSED), _again_after(step, results)

    def _plan(self, model: DisaggregatedModel, observed: Observed, now: datetime) -> rollout.Step:
        self._trace(PassStep.PLAN, "")
        step = rollout.next_step(model, observed, self._settings, now)
        logs.note(revision=step.revisions.update)
        logger.debug("plan: %s", step.why)
        return step

    def _follow_routers(self, observed: Observed, model: DisaggregatedModel | None) -> bool:
        """Whether they were never asked, so that `observed` lacks a report which comes within moments."""
        transfers = model is None or model.spec.mode is Mode.DISAGGREGATED
        routers = ready_routers(observed.pods) if transfers else ()
        every = model.spec.transfer.verify.interval_seconds if model else UNREAD_SECONDS
        self._reports.follow(observed.key, routers, every)
        return bool(routers) and observed.report is None

    async def _tell(
        self,
        observed: Observed,
        model: DisaggregatedModel | None,
        invalid: SpecInvalid | None,
        step: rollout.Step | None,
        results: Results,
        now: datetime,
    ) -> None:
        self._trace(PassStep.STATUS, "")
        status = compute(model, invalid, observed, step, results, now)
        told = [events.event(observed.raw, each, now, self._instance) for each in changes(observed.status, status)]
        self._trace(PassStep.WRITE, "")
        await self._publisher.publish(observed, status, told)
        conditions = status.get("conditions", ())
        is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        self._metrics.ready(observed.key, is_ready)

    def _forget(self, key: Key) -> None:
        self._reports.follow(key, (), UNREAD_SECONDS)
        self._executor.forget(key)
        self._publisher.forget(key)
        self._metrics.forget(key)


def _all_made(observed: Observed, results: Results) -> bool:
    """Whether this pass gave a new model its first children, and nothing went wrong that people should hear of."""
    is_new = not observed.status and not observed.children
    return is_new and results.applied > 0 and not results.failures and not results.conflicts


def _again_after(step: rollout.Step | None, results: Results) -> float | None:
    """Seconds until something is due of which no watch tells: a pause that ends, a foreign object that goes away."""
    pause = step.restarts.again if step is not None else None
    waits = [CONFLICT_SECONDS] if results.conflicts else []
    return min([*waits, *([] if pause is None else [pause.total_seconds()])], default=None)
