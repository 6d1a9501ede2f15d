"""What the operator says of itself over HTTP: alive, ready, metrics."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from kvferry_operator.errors import InputError
from kvferry_operator.metrics import CONTENT_TYPE, Metrics
from kvferry_operator.queue import Queue
from kvferry_operator.view.resync import Resync

STUCK_SECONDS = 30.0
"""The queue's loop turns every few seconds, whatever its passes do."""
MISSED_ROUNDS = 3
"""So many resyncs may fail before the operator counts as deaf."""
IDLE_SECONDS = 20.0
"""That a connection may be without a request: each holds a descriptor that the way to the API server needs."""
BACKLOG = 128
"""Connections that wait in the kernel."""


class Health:
    """Told by `serve` how far it is; asked by probes."""

    def __init__(self, resync_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._deaf_after = MISSED_ROUNDS * resync_seconds + STUCK_SECONDS
        self._clock = clock
        self._queue: Queue | None = None
        self._resync: Resync | None = None
        self._waits_for = "the API server"
        self.remark = ""
        """Something that people should know, though the operator works."""

    def waiting(self, what: str) -> None:
        """Cannot act yet, since it needs something."""
        self._waits_for = what

    def standing_by(self) -> None:
        """Another replica acts; this one is ready to take over."""
        self._waits_for = ""

    def acting(self, queue: Queue, resync: Resync) -> None:
        self._queue, self._resync = queue, resync
        self._waits_for = ""

    def sick(self) -> tuple[str, ...]:
        """Why the process should be started anew; empty while it is well."""
        now = self._clock()
        reasons = []
        if self._queue is not None and now - self._queue.turned > STUCK_SECONDS:
            reasons.append(f"the queue's loop has not turned for {now - self._queue.turned:.0f} s")
        if self._resync is not None:
            if now - self._resync.heard > self._deaf_after:
                reasons.append(f"no list came for {now - self._resync.heard:.0f} s")
            if self._resync.deaf:
                kinds = ", ".join(kind.plural for kind in self._resync.deaf)
                reasons.append(f"the watches of {kinds} do not tell what lists show")
        return tuple(reasons)

    def not_ready(self) -> str:
        """What it waits for; empty when it acts or stands by."""
        return self._waits_for


@asynccontextmanager
async def listening(port: int, health: Health, metrics: Metrics) -> AsyncIterator[int]:
    """Serve /healthz, /readyz and /metrics on all addresses; gives the port.

    Raises:
        InputError: the port cannot be listened on.
    """
    app = web.Application()

    async def healthz(_: web.Request) -> web.Response:
        sick = health.sick()
        return web.Response(status=503 if sick else 200, text="\n".join(sick or ("ok",)) + "\n")

    async def readyz(_: web.Request) -> web.Response:
        waits_for = health.not_ready()
        text = f"waits for {waits_for}" if waits_for else health.remark or "ok"
        return web.Response(status=503 if waits_for else 200, text=f"{text}\n")

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", exposition)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, keepalive_timeout=IDLE_SECONDS)
    await runner.setup()
    try:
        try:
            listener = _socket(port)
            # asyncio takes as many at once; without a free descriptor it would log as many errors, again and again
            await web.SockSite(runner, listener, backlog=1).start()
            listener.listen(BACKLOG)
        except OSError as error:
            raise InputError(f"cannot listen on port {port}: {error.strerror}; give another --http-port") from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _socket(port: int) -> socket.socket:
    """One for both families, so that any free port is the same for both."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
