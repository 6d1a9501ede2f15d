"""Sends canaries when they are due, and keeps what they found."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from kvferry_contract.endpoints import Group
from kvferry_contract.pairs import PairState, Report
from kvferry_runtime.router.group_table import GroupTable
from kvferry_runtime.router.metrics import RouterMetrics
from kvferry_runtime.router.pairing import Pair
from kvferry_runtime.router.reasons import Finding
from kvferry_runtime.router.settings import RouterSettings
from kvferry_runtime.router.upstream import Upstream
from kvferry_runtime.router.verify import report, sidecars
from kvferry_runtime.router.verify.canary import Canaries
from kvferry_runtime.router.verify.schedule import (
    Boots,
    Key,
    Standing,
    current,
    key_of,
    members_of,
    next_canaries,
    pairings,
    settled,
)
from kvferry_runtime.router.verify.sidecars import State
from kvferry_runtime.router.verify.verdict import Verdict, undecided

LOOK_SECONDS = 10.0
"""How often the sidecars are asked for their state: it tells of a restart, and is what the report says of them."""
LEAST_LOOK_SECONDS = 1.0
"""Between two such rounds when groups come and go."""

logger = logging.getLogger(__name__)


class Verifier:
    """One router's knowledge of its pairs. `run` until cancelled; everything else is called in the same event loop."""

    def __init__(self, settings: RouterSettings, table: GroupTable, upstream: Upstream, metrics: RouterMetrics) -> None:
        self._interval = settings.verify_interval_seconds if settings.disaggregation else 0.0
        self._table = table
        self._upstream = upstream
        self._metrics = metrics
        self._canaries = Canaries(settings, upstream)
        self._started_unix = time.time()
        self._standings: dict[Key, Standing] = {}
        self._states: dict[str, State] = {}
        self._boots: Boots = {}
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._regrouped = asyncio.Event()

    def groups_changed(self) -> None:
        """The table has another view."""
        known = {group.pod for group in self._table.groups}
        self._standings = {key: each for key, each in self._standings.items() if known.issuperset(key)}
        self._count()
        self._regrouped.set()
        self._wake.set()

    def doubt(self, pair: Pair) -> None:
        """A request's KV did not arrive by this pair."""
        standing = self._standings.get(key_of(pair))
        if standing is not None and standing.verified and not standing.doubted:
            self._standings[key_of(pair)] = replace(standing, doubted=True)
            self._wake.set()

    def report(self) -> Report:
        """What `GET /v1/pairs` answers."""
        return Report(
            started_unix=self._started_unix,
            pairs=tuple(report.pair_of(pair, self._known(pair)) for pair in self._pairs()),
            sidecars=report.facts_of(self._table.groups, self._states),
            routed=self._metrics.routed(),
        )

    async def run(self) -> None:
        """Look at sidecars and send canaries, until cancelled; then those under way are cancelled too."""
        try:
            await asyncio.gather(_for_ever(self._look), _for_ever(self._send_due))
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _pairs(self) -> list[Pair]:
        return pairings(self._table.groups)

    def _known(self, pair: Pair) -> Standing | None:
        return current(pair, self._standings, self._boots)

    async def _look(self) -> None:
        """Ask all sidecars, then wait until it is time to ask again."""
        self._regrouped.clear()
        self._states = await self._ask(self._table.groups)
        self._boots = _boots(self._states)
        self._count()
        self._wake.set()
        await asyncio.sleep(LEAST_LOOK_SECONDS)
        await _wait(self._regrouped, LOOK_SECONDS)

    async def _send_due(self) -> None:
        """Start the canaries that are due, then wait until the next one may be."""
        self._wake.clear()
        wait = LOOK_SECONDS
        if self._interval:
            now = asyncio.get_running_loop().time()
            busy = self._running.keys()
            chosen, wait = next_canaries(self._pairs(), self._standings, self._boots, busy, now, self._interval)
            for pair in chosen:
                self._running[key_of(pair)] = asyncio.create_task(self._prove(pair), name=f"canary {pair.decode.pod}")
        await _wait(self._wake, min(wait, LOOK_SECONDS))

    async def _prove(self, pair: Pair) -> None:
        key = key_of(pair)
        try:
            # asked just before, so that a restart from now on is noticed as one
            states = await self._ask((pair.prefill, pair.decode))
            try:
                verdict = await self._canaries.send(pair)
            except Exception:
                logger.exception("canary failed by a defect", extra={"prefill": key[0], "decode": key[1]})
                verdict = undecided("the router failed; its log says why")
            self._take(pair, verdict, _boots(states))
        finally:
            del self._running[key]
            self._wake.set()

    def _take(self, pair: Pair, verdict: Verdict, boots: Boots) -> None:
        reason = verdict.reason.value if verdict.reason else ""
        self._metrics.canaries.labels(verdict.finding.value, reason).inc()
        key = key_of(pair)
        known = {members_of(group) for group in self._table.groups}
        if not {members_of(pair.prefill), members_of(pair.decode)} <= known:
            return  # a pod of the two is gone, and what was found says nothing of who takes its name
        before = self._known(pair)
        now = asyncio.get_running_loop().time()
        standing = self._standings[key] = settled(before, verdict, pair, boots, now, time.time())
        self._count()
        if before is None or standing.news(before):
            _tell(key, verdict)

    async def _ask(self, groups: Iterable[Group]) -> dict[str, State]:
        found = await sidecars.states(self._upstream, [address for group in groups for address in group.sidecar_http])
        self._states |= found
        self._boots = _boots(self._states)
        return found

    def _count(self) -> None:
        counts = dict.fromkeys(PairState, 0)
        for pair in self._pairs():
            counts[report.state_of(self._known(pair))] += 1
        for state, count in counts.items():
            self._metrics.pairs.labels(state.value).set(count)


def _boots(states: Mapping[str, State]) -> Boots:
    return {address: state.boot_id for address, state in states.items()}


def _tell(key: Key, verdict: Verdict) -> None:
    extra = {"prefill": key[0], "decode": key[1], "reason": verdict.reason}
    if verdict.finding is Finding.VERIFIED:
        logger.info("pair verified: bytes and digests are equal at both ends", extra=extra)
    else:
        logger.warning("pair %s: %s", verdict.finding.value, verdict.message, extra=extra)


async def _for_ever(step: Callable[[], Awaitable[None]]) -> None:
    """Repeat `step`. A defect in it is told, and does not end what else the router does."""
    while True:
        try:
            await step()
        except Exception:
            logger.exception("verification failed by a defect")
            await asyncio.sleep(LOOK_SECONDS)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
