"""The engine's process: start, serve, drain, end."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from kvferry_contract import engines
from kvferry_contract.config import Role
from kvferry_runtime import http_port
from kvferry_runtime.agent.base import KvAgent
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.device.agent import cuda_agent
from kvferry_runtime.engine.reference import model as models
from kvferry_runtime.engine.reference.building import CLOSE_SECONDS, Join, build_engine, build_later_stage
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.http import EngineServer
from kvferry_runtime.engine.reference.kv import BLOCK_TOKENS
from kvferry_runtime.engine.reference.settings import EngineSettings
from kvferry_runtime.engine.reference.source import resolve
from kvferry_runtime.engine.reference.stage_http import StageServer
from kvferry_runtime.engine.stages.network import NetworkRing
from kvferry_runtime.engine.stages.ring import StageRing
from kvferry_runtime.engine.stages.settings import RingSettings
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.trace.recorder import Recorder, for_process

LOOK_SECONDS = 0.1
"""How often a draining engine looks whether it is done."""

_log = logging.getLogger(__name__)


def make_agent(settings: EngineSettings, recorder: Recorder | None = None) -> KvAgent | None:
    """The agent that this engine's role needs, by where its KV will lie.

    Raises:
        SettingsError: no such device.
    """
    if settings.transfer is None or settings.ring_directory is None or settings.role is Role.AGGREGATED:
        return None
    place = models.place_of(settings.device)
    if place.type == "cuda":
        return cuda_agent(
            settings.ring_directory, settings.role, settings.transfer, place, BLOCK_TOKENS, recorder,
            engines.METHODS["reference"],
        )  # fmt: skip
    return HostAgent(
        settings.ring_directory,
        settings.role,
        settings.transfer,
        methods=engines.METHODS["reference"],
        recorder=recorder,
    )


async def serve(settings: EngineSettings) -> int:
    """Run until SIGTERM or SIGINT, then finish what is open; 0 after a clean end, 1 if the engine or its group broke.

    Raises:
        SettingsError, ModelUnavailable, StageUnreachable: it could not start; nothing is left running.
    """
    # a thread that loads a model cannot be asked to end, and nothing is open yet that would be lost
    _on_signals(lambda: os._exit(0))
    recorder = for_process(settings.trace, f"{settings.role.value} engine {settings.host}")
    agent = make_agent(settings, recorder)
    serve_role = _serve_engine if settings.stage == 0 else _serve_later_stage
    try:
        return await serve_role(settings, agent)
    finally:
        if agent is not None:  # closed already, unless the engine could not be built
            await asyncio.to_thread(agent.close, CLOSE_SECONDS)
        if recorder is not None and settings.trace is not None:
            recorder.write(settings.trace)


async def _serve_engine(settings: EngineSettings, agent: KvAgent | None) -> int:
    """A whole model, or the first stage of a group."""
    stop, hurry, here = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    def ended() -> None:
        here.call_soon_threadsafe(stop.set)

    def leaving(stage: int) -> None:
        _log.warning("a stage of this group was told to end, so the group does", extra={"stage": stage})
        ended()

    def told() -> None:
        # the first time; from then on without patience
        stop.set()
        _on_signals(hurry.set)

    server = EngineServer(settings.model.served_name, settings.role)
    async with _listening(settings, server.application()):
        folder = await asyncio.to_thread(resolve, settings.model)
        join = None if settings.ring is None else _join(settings.ring)
        engine = await asyncio.to_thread(build_engine, folder, settings, agent, ended, join, leaving)
        _on_signals(told)
        try:
            server.serve(engine)
            await stop.wait()
            server.drain()
            if not engine.loop.alive():
                return 1
            await _drain(engine, settings.drain_seconds, hurry)
            return 0 if engine.loop.alive() else 1
        finally:
            await asyncio.to_thread(engine.close, CLOSE_SECONDS)


async def _serve_later_stage(settings: EngineSettings, agent: KvAgent | None) -> int:
    assert settings.ring is not None
    told, over, here = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    def ended() -> None:
        here.call_soon_threadsafe(over.set)
        here.call_soon_threadsafe(told.set)

    server = StageServer(settings.model.served_name, settings.role)
    async with _listening(settings, server.application()):
        folder = await asyncio.to_thread(resolve, settings.model)
        stage = await asyncio.to_thread(build_later_stage, folder, settings, agent, ended, _join(settings.ring))
        _on_signals(told.set)
        try:
            server.serve(stage)
            await told.wait()
            server.drain()
            if over.is_set():
                return 1
            stage.worker.leave()
            with suppress(TimeoutError):  # the first stage leaves the ring once nothing is open, which ends it here
                await asyncio.wait_for(over.wait(), settings.drain_seconds)
            return 0
        finally:
            await asyncio.to_thread(stage.close, CLOSE_SECONDS)


def _join(settings: RingSettings) -> Join:
    def join(marks: Mapping[str, str], largest_activation: int) -> StageRing:
        ring = NetworkRing(settings, marks, largest_activation)
        ring.connect()
        return ring

    return join


@asynccontextmanager
async def _listening(settings: EngineSettings, application: web.Application) -> AsyncIterator[None]:
    """Before all else: health answers while the model is fetched and loaded, and a taken port is told at once."""
    site = web.AppRunner(
        application, access_log=None, auto_decompress=False, handler_cancellation=True, shutdown_timeout=1.0
    )
    try:
        await _listen(site, settings.host, settings.port)
        yield
    finally:
        await site.cleanup()


def _on_signals(do: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, do)


async def _listen(site: web.AppRunner, host: str, port: int) -> None:
    try:
        await http_port.serve(site, host, port)
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror or error})"
        raise SettingsError(f"address {host}:{port} {reason}: choose another --host or --port") from error


async def _drain(engine: Engine, seconds: float, hurry: asyncio.Event) -> None:
    """Wait until nothing is open, KV that decode still fetches included, but at most `seconds`, or until `hurry`."""
    _log.info("draining", extra={"open": sum(engine.loop.counts().values()), "seconds": seconds})
    here = asyncio.get_running_loop()
    deadline = here.time() + seconds
    while (
        engine.loop.alive() and not engine.loop.idle() and not hurry.is_set() and (left := deadline - here.time()) > 0
    ):
        with suppress(TimeoutError):
            await asyncio.wait_for(hurry.wait(), min(left, LOOK_SECONDS))
    if not engine.loop.idle():
        _log.warning("drain is over, open requests fail", extra={"open": sum(engine.loop.counts().values())})
