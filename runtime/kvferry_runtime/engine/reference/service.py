"""The engine's process: start, serve, drain, end."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from kvferry_contract import engines
from kvferry_contract.config import Method, Role
from kvferry_runtime.agent.base import KvAgent
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.device.agent import DeviceAgent, cuda_agent
from kvferry_runtime.codec.sparse import budget
from kvferry_runtime.engine import stage_hosts
from kvferry_runtime.engine.reference import capacity, runner
from kvferry_runtime.engine.reference import model as models
from kvferry_runtime.engine.reference.core import EngineCore
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.http import EngineServer
from kvferry_runtime.engine.reference.kv import BLOCK_TOKENS, KvPool
from kvferry_runtime.engine.reference.loop import EngineLoop
from kvferry_runtime.engine.reference.messages import Message
from kvferry_runtime.engine.reference.metrics import EngineMetrics
from kvferry_runtime.engine.reference.settings import EngineSettings
from kvferry_runtime.engine.reference.source import resolve
from kvferry_runtime.engine.reference.text import Tokenizer
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.trace.recorder import Recorder, for_process

CLOSE_SECONDS = 5.0
"""For a running pass, and for the agent's running copy, to end."""
LOOK_SECONDS = 0.1
"""How often a draining engine looks whether it is done."""

_log = logging.getLogger(__name__)


def build_engine(folder: Path, settings: EngineSettings, agent: KvAgent | None, ended: Callable[[], None]) -> Engine:
    """Load the model and start everything that answers. Takes seconds to minutes.

    ended: called from the engine's thread when it ends.

    Raises:
        SettingsError, ModelUnavailable: see `model.load`.
        LayoutError, CodecRefused: the agent cannot carry this model's KV.
    """
    models.make_deterministic(settings.threads)
    model = models.load(folder, settings.device, settings.dtype)
    tokenizer = Tokenizer.load(folder)
    running = runner.build(model, settings.rows)
    gpu = agent.device if isinstance(agent, DeviceAgent) else None
    pool = KvPool(model.layout, capacity.kv_blocks(model, settings.kv_blocks), model.dtype, model.device, gpu)
    metrics = EngineMetrics()

    def build_core(post: Callable[[Message], None], beat: Callable[[], None]) -> EngineCore:
        kept = budget.of(settings.transfer) if settings.transfer else None
        return EngineCore(running, pool, agent, settings.failure_policy, kept, metrics, post, beat)

    loop = EngineLoop(build_core, ended)
    metrics.watch(loop.counts, lambda: (pool.total, pool.free), loop.age)
    if agent is not None:
        marks = models.fingerprint(model, settings.model.served_name, settings.model.revision, settings.threads)
        agent.start(model.layout, marks, loop.age)
    codec = settings.transfer.method if settings.transfer else Method.NONE
    engine = Engine(model, tokenizer, pool, loop, agent, metrics, settings.role, codec.value)
    loop.start()
    _log.info(
        "engine is ready",
        extra={
            "model": settings.model.served_name,
            "role": settings.role.value,
            "device": model.device.type,
            "dtype": str(model.dtype).removeprefix("torch."),
            "threads": settings.threads,
            "rows": running.rows,
            "kv_blocks": pool.total,
        },
    )
    return engine


def make_agent(settings: EngineSettings, recorder: Recorder | None = None) -> KvAgent | None:
    """The agent that this engine's role needs, by where its KV will lie.

    Raises:
        SettingsError: no such device, or the method cannot run on it.
    """
    if settings.transfer is None or settings.ring_directory is None or settings.role is Role.AGGREGATED:
        return None
    place = models.place_of(settings.device)
    if place.type == "cuda":
        return cuda_agent(settings.ring_directory, settings.role, settings.transfer, place, BLOCK_TOKENS, recorder)
    return HostAgent(
        settings.ring_directory,
        settings.role,
        settings.transfer,
        methods=engines.METHODS["reference"],
        recorder=recorder,
    )


async def serve(settings: EngineSettings) -> int:
    """Run until SIGTERM or SIGINT, then finish what is open; 0 after a clean end, 1 if the engine broke.

    Raises:
        SettingsError, ModelUnavailable, StageUnreachable: it could not start; nothing is left running.
    """
    stop = asyncio.Event()
    here = asyncio.get_running_loop()
    # a thread that loads a model cannot be asked to end, and nothing is open yet that would be lost
    _on_signals(lambda: os._exit(0))

    def ended() -> None:
        here.call_soon_threadsafe(stop.set)

    recorder = for_process(settings.trace, f"{settings.role.value} engine {settings.host}")
    agent = make_agent(settings, recorder)
    server = EngineServer(settings.model.served_name, settings.role)
    site = web.AppRunner(
        server.application(), access_log=None, auto_decompress=False, handler_cancellation=True, shutdown_timeout=1.0
    )
    await site.setup()
    try:
        # listening first: health answers while the model is fetched and loaded, and a taken port is told at once
        await _listen(site, settings.host, settings.port)
        if settings.stage_hosts:
            await _find_stages(settings.stage_hosts, settings.stage_wait_seconds)
        folder = await asyncio.to_thread(resolve, settings.model)
        engine = await asyncio.to_thread(build_engine, folder, settings, agent, ended)
        _on_signals(stop.set)
        try:
            return await _answer(engine, server, settings.drain_seconds, stop)
        finally:
            await asyncio.to_thread(engine.close, CLOSE_SECONDS)
            if recorder is not None and settings.trace is not None:
                recorder.write(settings.trace)
    finally:
        await site.cleanup()


async def _find_stages(hosts: tuple[str, ...], wait_seconds: float) -> None:
    await stage_hosts.addresses(hosts, stage_hosts.system_lookup, wait_seconds)
    raise SettingsError(
        f"the reference engine serves whole models, this pod is one of {len(hosts)} stages: "
        "set parallelism.pipeline to 1"
    )


def _on_signals(do: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, do)


async def _answer(engine: Engine, server: EngineServer, drain_seconds: float, stop: asyncio.Event) -> int:
    """Serve until `stop`, then drain; the exit code."""
    server.serve(engine)
    await stop.wait()
    server.drain()
    if not engine.loop.alive():
        return 1
    stop.clear()
    await _drain(engine, drain_seconds, hurry=stop)
    return 0


async def _listen(site: web.AppRunner, host: str, port: int) -> None:
    try:
        await web.TCPSite(site, host, port).start()
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror or error})"
        raise SettingsError(f"address {host}:{port} {reason}: choose another --host or --port") from error


async def _drain(engine: Engine, seconds: float, hurry: asyncio.Event) -> None:
    """Wait until nothing is open, KV that decode still fetches included, but at most `seconds`, or until `hurry`."""
    _log.info("draining", extra={"open": sum(engine.loop.counts().values()), "seconds": seconds})
    here = asyncio.get_running_loop()
    deadline = here.time() + seconds
    while not engine.loop.idle() and not hurry.is_set() and (left := deadline - here.time()) > 0:
        with suppress(TimeoutError):
            await asyncio.wait_for(hurry.wait(), min(left, LOOK_SECONDS))
    if not engine.loop.idle():
        _log.warning("drain is over, open requests fail", extra={"open": sum(engine.loop.counts().values())})
