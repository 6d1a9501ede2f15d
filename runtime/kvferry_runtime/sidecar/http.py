"""The sidecar's HTTP: health, readiness, metrics, state and transfer records. Read only."""

from __future__ import annotations

import errno

from aiohttp import web

from kvferry_runtime import http_port
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.sidecar.core import SidecarCore
from kvferry_runtime.sidecar.metrics import CONTENT_TYPE

CONNECTIONS = 128
"""Of probes, scrapers and people; the descriptors are for peers."""
LISTED = 100
"""Records in GET /v1/transfers, newest first."""

_CORE = web.AppKey("core", SidecarCore)


def application(core: SidecarCore) -> web.Application:
    app = web.Application(client_max_size=1024)
    app[_CORE] = core
    app.router.add_get("/healthz", _health)
    app.router.add_get("/readyz", _ready)
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/v1/state", _state)
    app.router.add_get("/v1/transfers", _transfers)
    app.router.add_get("/v1/transfers/{id}", _transfer)
    return app


async def serve(core: SidecarCore, host: str, port: int) -> web.AppRunner:
    """Listen; `cleanup` of what is returned ends it.

    Raises:
        SettingsError: the address is not free, or not ours.
    """
    runner = web.AppRunner(application(core), access_log=None, auto_decompress=False, shutdown_timeout=1.0)
    try:
        await http_port.serve(runner, host, port, CONNECTIONS)
    except OSError as error:
        await runner.cleanup()
        text = {
            errno.EADDRINUSE: "is in use: stop what listens there",
            errno.EADDRNOTAVAIL: "is not an address of this pod",
        }
        message = text.get(error.errno or 0, error.strerror or str(error))
        raise SettingsError(f"HTTP address {host}:{port} {message}") from error
    return runner


async def _health(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _ready(request: web.Request) -> web.Response:
    core = request.app[_CORE]
    if core.ready:
        return web.json_response({"status": "ready"})
    reason = "draining" if core.draining else "no engine is attached"
    return web.json_response({"status": "not ready", "reason": reason}, status=503)


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(body=request.app[_CORE].metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})


async def _state(request: web.Request) -> web.Response:
    return web.json_response(request.app[_CORE].state())


async def _transfers(request: web.Request) -> web.Response:
    records = request.app[_CORE].records.newest(LISTED)
    return web.json_response({"transfers": [record.to_dict() for record in records]})


async def _transfer(request: web.Request) -> web.Response:
    """A pod that is both ends of a transfer has two records: `?direction=send|receive` chooses."""
    transfer_id = request.match_info["id"]
    direction = request.query.get("direction")
    for record in request.app[_CORE].records.find(transfer_id):
        if direction in (None, record.direction.value):
            return web.json_response(record.to_dict())
    error = {"message": f"transfer {transfer_id} is not known here", "type": "not_found", "code": "unknown_transfer"}
    return web.json_response({"error": error}, status=404)
