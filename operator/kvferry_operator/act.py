"""What an operator does once it is connected: wait for its turn, read everything, then watch and reconcile."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from kvferry_operator import app, served_schema
from kvferry_operator.desired.settings import Settings
from kvferry_operator.errors import ClusterError, Refused
from kvferry_operator.health import Health
from kvferry_operator.kube import lease
from kvferry_operator.kube.client import Cluster
from kvferry_operator.kube.lease_record import Terms
from kvferry_operator.metrics import Metrics
from kvferry_operator.options import Options
from kvferry_operator.queue import Queue
from kvferry_operator.reconcile.execute import Executor
from kvferry_operator.reconcile.one_pass import Reconciler
from kvferry_operator.reconcile.publish import Publisher
from kvferry_operator.reconcile.steps import Trace
from kvferry_operator.reconcile.writes import Writes
from kvferry_operator.view.listener import Listener
from kvferry_operator.view.observe import Observer
from kvferry_operator.view.reports import Reports
from kvferry_operator.view.resync import Resync
from kvferry_operator.view.store import Store

LEASE = "kvferry-operator"
AGAIN_SECONDS = 2.0
"""Between two attempts to begin."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


async def act(
    chosen: Options, cluster: Cluster, metrics: Metrics, health: Health, trace: Trace, take_signals: Callable[[], None]
) -> None:
    """Until it is cancelled. take_signals: see `app.watch`.

    Raises:
        LeaseLost: another replica may act now.
        RightsGiven: a namespace that was left out can be served by now.
        Exception: a watch broke in a way that only a new process mends.
    """
    server = await _patiently(health, cluster.server_version)
    await _until_crd(cluster, metrics, health)
    identity = _identity()
    async with AsyncExitStack() as turn:
        leads: Callable[[], bool] = _alone
        if chosen.leader_elect:
            health.standing_by()
            held = lease.hold(cluster, Terms(chosen.lease_namespace, LEASE), identity)
            leads = await turn.enter_async_context(held)
        metrics.leader.set(1)
        store = Store()
        queue = Queue(chosen.workers)
        reports = Reports(cluster, queue.mark)
        reconciler = _reconciler(chosen, cluster, store, reports, server, metrics, trace, leads, identity)
        metrics.watch_queue(lambda: len(queue))
        resync = Resync(cluster, store, metrics, queue.mark, chosen.namespaces, chosen.resync_seconds)
        # a pass that sees half of the children would plan for the other half
        await _patiently(health, resync.fill)
        health.remark = "; ".join(filter(None, (health.remark, *resync.closed.values())))
        health.acting(queue, resync)
        work = (queue.run(reconciler.reconcile), reports.run(), resync.run())
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(each) for each in work]
                await app.watch(cluster, resync.namespaces, Listener(store, queue, resync).hear, take_signals)
                for helper in helpers:
                    helper.cancel()
        except ExceptionGroup as errors:
            # the first one has ended the others
            raise errors.exceptions[0] from None


def _reconciler(
    chosen: Options,
    cluster: Cluster,
    store: Store,
    reports: Reports,
    server: tuple[int, int],
    metrics: Metrics,
    trace: Trace,
    leads: Callable[[], bool],
    identity: str,
) -> Reconciler:
    writes = Writes(metrics, trace, leads)
    return Reconciler(
        settings=Settings(chosen.images, chosen.pull_policy, server),
        observer=Observer(cluster, store, reports),
        reports=reports,
        executor=Executor(cluster, store, writes, chosen.resync_seconds),
        publisher=Publisher(cluster, store, writes),
        metrics=metrics,
        trace=trace,
        instance=identity,
    )


async def _until_crd(cluster: Cluster, metrics: Metrics, health: Health) -> None:
    async def schema() -> None:
        served = await cluster.model_schema()
        if served is None:
            raise Refused("the CRD disaggregatedmodels.kvferry.io is not installed: apply crds/, or the chart")
        lacking = served_schema.lacking(served)
        metrics.crd_outdated.set(bool(lacking))
        if lacking:
            health.remark = f"the CRD is of another release, it lacks {', '.join(lacking)}: apply crds/ of this one"
            logger.warning(health.remark)

    await _patiently(health, schema)


async def _patiently(health: Health, attempt: Callable[[], Awaitable[T]]) -> T:
    """Nothing works before this does: try for ever, and say what is in the way."""
    trouble = ""
    while True:
        try:
            return await attempt()
        except ClusterError as error:
            if str(error) != trouble:
                trouble = str(error)
                health.waiting(trouble)
                logger.warning("cannot begin yet: %s", trouble)
        await asyncio.sleep(AGAIN_SECONDS)


def _alone() -> bool:
    """Without election nobody else acts: that is what whoever switches it off promises."""
    return True


def _identity() -> str:
    """Unlike that of any other process: a pod that is started anew keeps its name."""
    return f"{os.environ.get('HOSTNAME', 'kvferry-operator')}-{secrets.token_hex(4)}"
