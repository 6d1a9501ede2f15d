"""One container: started, probed, restarted when it ends, stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

import aiohttp

from kvferry_operator.local import probes, proc
from kvferry_operator.local.bond import Bond
from kvferry_operator.local.containers import Launch
from kvferry_operator.local.errors import CannotStart, StartFailed
from kvferry_operator.local.pods import Container, Kind
from kvferry_operator.local.process import Process, exit_text, last_lines
from kvferry_operator.local.record import ContainerRecord, Phase
from kvferry_operator.local.restart import Backoff

SETTINGS_ERROR = 2
"""Exit status by which our runtime says that it cannot work as it is set: starting it again would not help."""
_RUNTIME = "kvferry-runtime"
_SHOWN_LINES = 3


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all containers of an instance share.

    began: told of each process started. changed: told that a record is another one now. report: one line for people.
    """

    run: str
    session: aiohttp.ClientSession
    began: Callable[[proc.Identity], None]
    changed: Callable[[], None]
    report: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Probes:
    startup: probes.Probe | None
    readiness: probes.Probe | None
    liveness: probes.Probe | None

    @classmethod
    def of(cls, container: Container, address: str) -> Probes:
        """
        Raises:
            Unsupported: a kind of probe that local mode does not ask.
        """
        return cls(
            probes.parse(container, "startupProbe", address),
            probes.parse(container, "readinessProbe", address),
            probes.parse(container, "livenessProbe", address),
        )


class Runner:
    """Keeps one container running. `run` ends when it was stopped, or an init container is done."""

    def __init__(
        self,
        container: Container,
        launch: Launch,
        asked: Probes,
        grace: float,
        shared: Surroundings,
        bond: Bond | None = None,
    ) -> None:
        """bond: containers that end when this one does, and start again with it."""
        self.container = container
        self.up = asyncio.Event()
        """Set once it has started (its startup probe passed, or an init container is done): the next may start."""
        self._launch = launch
        self._probes = asked
        self._grace = grace
        self._shared = shared
        self._bond = bond
        if bond is not None:
            bond.add(self)
        self._stopping = asyncio.Event()
        self._process: Process | None = None
        self._phase = Phase.WAITING
        self._ready = False
        self._was_ready = False
        self._restarts = 0
        self._note = ""

    @property
    def record(self) -> ContainerRecord:
        pid = self._process.identity.pid if self._process else 0
        return ContainerRecord(self.container.name, self._phase, self._ready, self._restarts, pid, self._note)

    async def run(self) -> None:
        """
        Raises:
            StartFailed: our runtime refused its settings before it was ever ready; the message has its own words.
        """
        backoff, clock = Backoff(), asyncio.get_running_loop().time
        while not self._stopping.is_set():
            began = clock()
            status = await self._once()
            if self._stopping.is_set():
                break
            if self.container.kind is Kind.INIT and status == 0:
                self._ready = True
                self.up.set()
                break
            self._refuse_settings_error(status)
            delay, backoff = backoff.after(clock() - began)
            self._restarts += 1
            self._note = exit_text(status)
            self._set(Phase.BACKOFF)
            said = "".join(f"\n    {line}" for line in last_lines(self._launch.log, _SHOWN_LINES))
            self._say(f"ended ({self._note}), starts again in {delay:.0f} s{said}")
            if self._bond is not None:
                await self._bond.broken()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
        self._set(Phase.ENDED)

    async def stop(self) -> None:
        """SIGTERM, then after the pod's grace SIGKILL; returns when the process is gone."""
        self._stopping.set()
        if self._process is not None:
            await self._process.stop(self._grace)

    async def end_with_others(self, seconds: float) -> None:
        """As `bond.Member`."""
        process = self._process
        if process is None:
            return
        try:
            await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            self._say(f"has not ended {seconds:.0f} s after another stage of its group did: killing it")
            process.kill()
            await process.wait()

    def kill(self) -> None:
        """SIGKILL, now."""
        self._stopping.set()
        if self._process is not None:
            self._process.kill()

    async def _once(self) -> int:
        """One life of the container; its exit status.

        Raises:
            CannotStart: no process or no log can be made.
        """
        try:
            self._process = process = Process.start(self._launch, self._shared.run, self._restarts)
        except OSError as error:
            where = f"pod {self._launch.pod}, container {self.container.name}"
            raise CannotStart(f"{where} cannot be started: {error}") from error
        self._shared.began(process.identity)
        self._set(Phase.STARTING)
        watch = asyncio.create_task(self._watch(process))
        end = asyncio.create_task(process.wait())
        try:
            await asyncio.wait((watch, end), return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            return await end
        finally:
            process.kill()  # it has ended, unless a probe could not be asked or this task is cancelled
            watch.cancel()
            await asyncio.gather(watch, end, return_exceptions=True)
            self._process = None
            self._ready = False

    async def _watch(self, process: Process) -> None:
        """Ask the probes for as long as the process lives."""
        if self._probes.startup is not None and not await self._await_startup(self._probes.startup):
            self._say("its startup probe did not pass in time")
            await process.stop(self._grace)
            return
        if self.container.kind is Kind.INIT:
            return
        self.up.set()
        self._ready = self._probes.readiness is None
        self._was_ready |= self._ready
        self._set(Phase.RUNNING)
        async with asyncio.TaskGroup() as group:
            if self._probes.readiness is not None:
                group.create_task(self._watch_readiness(self._probes.readiness))
            if self._probes.liveness is not None:
                group.create_task(self._watch_liveness(self._probes.liveness, process))

    async def _await_startup(self, probe: probes.Probe) -> bool:
        """Whether it passed within the time that the probe's thresholds allow."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + probe.initial_delay + probe.period * probe.failures
        while clock() < deadline:
            if await self._ask(probe):
                return True
            await asyncio.sleep(min(probe.period, probes.EAGER_SECONDS))
        return False

    async def _watch_readiness(self, probe: probes.Probe) -> None:
        tally = probes.Tally(passing=False)
        while True:
            tally = tally.count(await self._ask(probe), probe)
            if tally.passing != self._ready:
                self._ready = tally.passing
                self._was_ready |= self._ready
                self._shared.changed()
            await asyncio.sleep(probe.period if self._ready else min(probe.period, probes.EAGER_SECONDS))

    async def _watch_liveness(self, probe: probes.Probe, process: Process) -> None:
        tally = probes.Tally(passing=True)
        await asyncio.sleep(probe.initial_delay)
        while tally.passing:
            await asyncio.sleep(probe.period)
            tally = tally.count(await self._ask(probe), probe)
        self._say(f"its liveness probe failed {probe.failures} times")
        await process.stop(self._grace)

    async def _ask(self, probe: probes.Probe) -> bool:
        return await probes.ask(probe, self._shared.session, self._launch, self._shared.run)

    def _refuse_settings_error(self, status: int) -> None:
        ours = PurePath(self._launch.argv[0]).name == _RUNTIME
        if ours and status == SETTINGS_ERROR and not self._was_ready:
            said = "\n".join(last_lines(self._launch.log, _SHOWN_LINES)) or f"see {self._launch.log}"
            raise StartFailed(f"pod {self._launch.pod}, container {self.container.name} cannot start: {said}")

    def _set(self, phase: Phase) -> None:
        self._phase = phase
        self._shared.changed()

    def _say(self, text: str) -> None:
        self._shared.report(f"{self._launch.pod} {self.container.name}: {text}")
