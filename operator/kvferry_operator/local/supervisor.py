"""Runs a deployment's pods, tells the router who is ready, and ends them all in the right order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable

import aiohttp

from kvferry_contract import endpoints as contract
from kvferry_operator.api import names
from kvferry_operator.local import logfiles, router_view, state, volumes
from kvferry_operator.local.bond import Bond
from kvferry_operator.local.custody import Custody
from kvferry_operator.local.deployment import ROUTER, Deployment
from kvferry_operator.local.endpoints import groups_of
from kvferry_operator.local.pods import GroupKey, Kind, Pod, stages_of
from kvferry_operator.local.record import PodRecord, Record
from kvferry_operator.local.runner import Runner, Surroundings
from kvferry_operator.local.state import Claim


class Supervisor:
    """One deployment on one claim. `start`, then `wait_ready` or `wait_failed`, and `stop` on every way out."""

    def __init__(
        self,
        deployment: Deployment,
        claim: Claim,
        custody: Custody,
        logs: logfiles.Logs,
        report: Callable[[str], None],
    ) -> None:
        """report: gets one line for people at each thing that happens."""
        self._deployment = deployment
        self._claim = claim
        self._logs = logs
        self._report = report
        self._stages = stages_of(deployment.pods)
        self._bonds: dict[GroupKey, Bond] = {key: Bond() for key, stages in self._stages.items() if stages > 1}
        self._runners: dict[str, list[Runner]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._dirty = asyncio.Event()
        self._ready = asyncio.Event()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._custody = custody
        self._session: aiohttp.ClientSession | None = None
        self._announced: dict[str, bool] = {}
        self._stopping = False

    @property
    def record(self) -> Record:
        pods = tuple(
            PodRecord(
                name=pod.name,
                role=pod.role,
                address=self._deployment.addresses[pod.name],
                containers=tuple(runner.record for runner in self._runners.get(pod.name, ())),
                group=pod.ordinal,
                stage=pod.stage,
                stages=self._stages.get(pod.group, 1),
            )
            for pod in self._deployment.pods
        )
        deployment = self._deployment
        folder = str(self._logs.folder)
        return Record(deployment.namespace, deployment.name, os.getpid(), deployment.url, folder, pods)

    def start(self) -> None:
        """Begin to start all pods at once; each starts its containers in order.

        Raises:
            OSError: a folder or file cannot be made.
        """
        self._session = aiohttp.ClientSession(trust_env=False)
        shared = Surroundings(self._claim.run, self._session, self._custody.add, self._dirty.set, self._report)
        for pod in self._deployment.pods:
            self._runners[pod.name] = [self._runner(pod, index, shared) for index in range(len(pod.containers))]
        self._write()
        work = [self._write_changes(), self._logs.keep_small(), *map(self._run_pod, self._runners.values())]
        self._tasks = [asyncio.create_task(self._guard(one)) for one in work]

    async def wait_ready(self) -> None:
        """Until every pod is ready and the router knows it.

        Raises:
            StartFailed: a container refused its settings.
        """
        ready = asyncio.ensure_future(self._usable())
        try:
            await asyncio.wait((ready, self._failed), return_when=asyncio.FIRST_COMPLETED)
            (self._failed if self._failed.done() else ready).result()
        finally:
            ready.cancel()

    async def _usable(self) -> None:
        await self._ready.wait()
        if self._deployment.url:
            assert self._session is not None, "start() comes first"
            await router_view.until_ready_groups(self._session, self._deployment.url, len(self._groups()))

    async def wait_failed(self) -> None:
        """Until something ended that may not end.

        Raises:
            StartFailed: a container refused its settings.
        """
        await asyncio.shield(self._failed)

    async def stop(self) -> None:
        """Routers first, then each pod's main containers, then its sidecars in reverse."""
        self._stopping = True
        try:
            pods = self._deployment.pods
            await self._stop_pods(pod for pod in pods if pod.role == ROUTER)
            await self._stop_pods(pod for pod in pods if pod.role != ROUTER)
        finally:
            self.kill()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._failed.done():
                self._failed.exception()  # heard of, or overtaken by the stop
            if self._session is not None:
                await self._session.close()

    def kill(self) -> None:
        """SIGKILL to all containers, now; `stop` then has nothing to wait for."""
        for runner in self._all_runners():
            runner.kill()

    def _groups(self) -> tuple[contract.Group, ...]:
        ready = {pod.name: pod.ready for pod in self.record.pods}
        return groups_of(self._deployment.pods, self._deployment.addresses, ready)

    def _all_runners(self) -> Iterable[Runner]:
        return (runner for runners in self._runners.values() for runner in runners)

    def _runner(self, pod: Pod, index: int, shared: Surroundings) -> Runner:
        container = pod.containers[index]
        key = (pod.name, container.name)
        launch = self._deployment.launches[key]
        volumes.create(launch.mounts)
        self._logs.add(launch.log)
        bond = self._bonds.get(pod.group) if container.name == names.CONTAINER_ENGINE else None
        return Runner(container, launch, self._deployment.probes[key], pod.grace_seconds, shared, bond)

    async def _run_pod(self, runners: list[Runner]) -> None:
        async with asyncio.TaskGroup() as group:
            for runner in runners:
                group.create_task(self._guard(runner.run()))
                if runner.container.kind is not Kind.MAIN:
                    await runner.up.wait()

    async def _guard(self, work: Coroutine[None, None, None]) -> None:
        """Whatever ends the work, whoever waits for this supervisor hears of it."""
        try:
            await work
        except Exception as error:
            if not self._failed.done():
                self._failed.set_exception(error)

    async def _stop_pods(self, pods: Iterable[Pod]) -> None:
        await asyncio.gather(*(self._stop_pod(self._runners.get(pod.name, [])) for pod in pods))

    async def _stop_pod(self, runners: list[Runner]) -> None:
        await asyncio.gather(*(runner.stop() for runner in runners if runner.container.kind is Kind.MAIN))
        for runner in reversed(runners):
            if runner.container.kind is not Kind.MAIN:
                await runner.stop()

    async def _write_changes(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            self._write()

    def _write(self) -> None:
        record = self.record
        state.replace(self._claim.endpoints, contract.dump(self._groups()))
        state.replace(self._claim.record, record.to_json())
        if record.ready:
            self._ready.set()
        else:
            self._ready.clear()
        for pod in () if self._stopping else record.pods:
            if pod.ready != self._announced.get(pod.name, False):
                self._announced[pod.name] = pod.ready
                self._report(f"{pod.name}: {'ready' if pod.ready else 'not ready'} ({pod.address})")
