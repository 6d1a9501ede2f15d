"""The sidecar's process: core and HTTP in one event loop, until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from kvferry_contract.config import OnFallback, TransportKind
from kvferry_runtime.errors import SettingsError, TransportUnavailable
from kvferry_runtime.ring.memory import RingGeometry
from kvferry_runtime.sidecar import preflight, resources
from kvferry_runtime.sidecar.core import SidecarCore
from kvferry_runtime.sidecar.http import serve
from kvferry_runtime.sidecar.settings import SidecarSettings
from kvferry_runtime.trace.recorder import Recorder, for_process
from kvferry_runtime.transport.base import Transport

_log = logging.getLogger(__name__)


def run(settings: SidecarSettings) -> int:
    """Serve until SIGTERM or SIGINT, then drain. 0 after a clean stop.

    Raises:
        SettingsError: no UCX, an address that is not free, too little shared memory, no RDMA where it must be.
    """
    _check_rdma(settings)
    recorder = for_process(settings.trace, f"{settings.role.value} sidecar {settings.group}")
    try:
        return asyncio.run(_run(settings, recorder))
    finally:
        if recorder is not None and settings.trace is not None:
            recorder.write(settings.trace)


async def _run(settings: SidecarSettings, recorder: Recorder | None) -> int:
    core = SidecarCore(settings, _transport(settings), recorder=recorder)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        await core.start()
        runner = await serve(core, settings.host, settings.http_port)
        try:
            await stopped.wait()
            await core.drain()
        finally:
            await runner.cleanup()
    finally:
        await core.close()
    _log.info("stopped")
    return 0


def _transport(settings: SidecarSettings) -> Transport:
    from kvferry_runtime.transport.ucx import UcxTransport

    try:
        return UcxTransport(settings.transfer.transport, os.environ)
    except TransportUnavailable as error:
        raise SettingsError(str(error)) from error


def _check_rdma(settings: SidecarSettings) -> None:
    """Tell what stands in the way of RDMA where it is asked for.

    Raises:
        SettingsError: something does, and the object does not tolerate another transport.
    """
    transfer = settings.transfer
    if not preflight.demanded(transfer.transport, os.environ):
        return
    ring = RingGeometry(settings.slots, transfer.chunk_bytes)
    problems = preflight.problems(resources.found(), ring.file_bytes)
    if problems and transfer.transport is TransportKind.RDMA and transfer.on_fallback is OnFallback.FAIL:
        raise SettingsError("; ".join(problems))
    for problem in problems:
        _log.warning(problem)
