"""What routers report, asked for beside the passes: a router that hangs holds up nobody."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from kvferry_contract import pairs, ports
from kvferry_operator.errors import ClusterError
from kvferry_operator.kube.client import Cluster
from kvferry_operator.observation.observed import RouterReport
from kvferry_operator.queue import Queue
from kvferry_operator.schedule import Key

ASK_SECONDS = 3.0
"""For one router's answer."""
AT_ONCE = 16
"""Half of the connections that the client may have."""
REPORT_LIMIT = 8 << 20
"""Bytes: some 250 for a pair, so that 100 groups on each side fit."""
_PATH = "/v1/pairs"


@dataclass(slots=True)
class _Followed:
    """routers: names of ready pods. report: None until one was asked."""

    routers: tuple[str, ...]
    every: float
    report: RouterReport | None = None


class Reports:
    """The latest report of each model that has a ready router. A report that is another than before marks the model."""

    def __init__(self, cluster: Cluster, mark: Callable[[Key], None]) -> None:
        self._cluster = cluster
        self._mark = mark
        self._followed: dict[Key, _Followed] = {}
        self._queue = Queue(AT_ONCE)

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._queue.run(self._ask)

    def follow(self, key: Key, routers: tuple[str, ...], every: float) -> None:
        """Ask one of these pods from now on, every so many seconds; with none of them, stop and forget."""
        known = self._followed.get(key)
        if not routers:
            self._followed.pop(key, None)
        elif known is None:
            self._followed[key] = _Followed(routers, every)
            self._queue.mark(key)
        else:
            if routers != known.routers or every < known.every:
                self._queue.mark(key)
            known.routers, known.every = routers, every

    def latest(self, key: Key) -> RouterReport | None:
        """None when there is no router to ask, or the first answer is still out."""
        known = self._followed.get(key)
        return known.report if known else None

    async def _ask(self, key: Key) -> float | None:
        followed = self._followed.get(key)
        if followed is None:
            return None
        report = await self._first_answer(key[0], followed.routers)
        changed = report != followed.report
        followed.report = report
        if changed:
            self._mark(key)
        return followed.every * random.uniform(0.8, 1.2)  # noqa: S311  spreads load

    async def _first_answer(self, namespace: str, routers: tuple[str, ...]) -> RouterReport:
        """Of the first router that answers: each of them proves all pairs."""
        why = ""
        for pod in routers:
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    answer = await self._cluster.ask_pod(namespace, pod, ports.ROUTER, _PATH, REPORT_LIMIT)
                return RouterReport(pairs.load(answer.decode()))
            except TimeoutError:
                why = why or f"{pod}: no answer in {ASK_SECONDS:g} s"
            except (ClusterError, pairs.PairsError, UnicodeDecodeError) as error:
                why = why or f"{pod}: {error}"
        return RouterReport(None, why)
