"""A router's life: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from aiohttp import web

from kvferry_runtime import http_port
from kvferry_runtime.errors import KvferryError, SettingsError
from kvferry_runtime.router.discovery import Discovery, open_discovery
from kvferry_runtime.router.group_table import GroupTable
from kvferry_runtime.router.metrics import RouterMetrics
from kvferry_runtime.router.relay import Relay
from kvferry_runtime.router.server import RouterApi
from kvferry_runtime.router.settings import RouterSettings
from kvferry_runtime.router.upstream import Upstream
from kvferry_runtime.router.verify.verifier import Verifier

FAREWELL_SECONDS = 1.0
"""After the drain, for the errors that tell the remaining clients to reach them."""

logger = logging.getLogger(__name__)


class Router:
    """A running router. `async with` starts it and stops it; on the way out running requests get `drain_seconds`.

    Raises:
        SettingsError: the endpoints cannot be used, or the address cannot be listened on.
    """

    def __init__(self, settings: RouterSettings, discovery: Discovery | None = None) -> None:
        self._settings = settings
        self._metrics = RouterMetrics(settings.served_name)
        self._table = GroupTable()
        self._discovery = discovery or open_discovery(
            settings.endpoints, self._metrics.discovery_errors.inc, settings.host
        )
        self._upstream = Upstream(settings.silence_seconds, settings.answer_seconds)
        self._verifier = Verifier(settings, self._table, self._upstream, self._metrics)
        relay = Relay(settings, self._table, self._upstream, self._metrics, self._verifier.doubt)
        self._api = RouterApi(settings, self._table, relay, self._metrics, self._verifier.report)
        self._resources = AsyncExitStack()
        self.address = ""
        """`host:port` listened on, once started."""
        self.watching: asyncio.Task[None] | None = None
        """Ends only by a defect of discovery: then the router must not go on with an old view."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as resources:
            await resources.enter_async_context(self._upstream)
            # without handler_cancellation a client's leaving would not be noticed until the next write
            runner = web.AppRunner(
                self._api.application(),
                handler_cancellation=True,
                access_log=None,
                auto_decompress=False,
                shutdown_timeout=self._settings.drain_seconds + FAREWELL_SECONDS,
            )
            resources.push_async_callback(self._drain, runner)
            try:
                await http_port.serve(runner, self._settings.host, self._settings.port)
            except OSError as error:
                raise SettingsError(
                    f"cannot listen on {self._settings.host}:{self._settings.port}: {error.strerror}; "
                    "give another --host or --port, or stop what uses it"
                ) from error
            host, port = runner.addresses[0][:2]
            self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            self.watching = asyncio.create_task(self._watch())
            resources.push_async_callback(_cancel, self.watching)
            resources.push_async_callback(_cancel, asyncio.create_task(self._verifier.run()))
            self._resources = resources.pop_all()
        logger.info("router listens", extra={"address": self.address, "model": self._settings.served_name})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._resources.aclose()

    async def _drain(self, runner: web.AppRunner) -> None:
        end = asyncio.get_running_loop().call_later(self._settings.drain_seconds, self._api.end_all)
        try:
            await runner.cleanup()
        finally:
            end.cancel()

    async def _watch(self) -> None:
        async for groups in self._discovery.watch():
            self._table.replace(groups)
            self._verifier.groups_changed()
            ready = sum(group.ready and not group.terminating for group in groups)
            logger.info("groups changed", extra={"groups": len(groups), "ready": ready})


def serve(settings: RouterSettings) -> int:
    """Run a router until SIGTERM or SIGINT. 0 after a clean stop, 1 when discovery broke.

    Raises:
        SettingsError: as `Router`, or there is no service account to find groups with.
    """
    return asyncio.run(_serve(settings))


async def _serve(settings: RouterSettings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Router(settings) as router:
        assert router.watching is not None
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((stopping, router.watching), return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            stopping.cancel()
            error = router.watching.exception()
            if isinstance(error, KvferryError):
                raise error
            logger.error("discovery ended", exc_info=error)
            return 1
        logger.info("router stops", extra={"drain_seconds": settings.drain_seconds})
        return 0


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
