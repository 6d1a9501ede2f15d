"""A sidecar's HTTP that says what a test wants it to say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

Json = dict[str, Any]

COMMITTED: Json = {
    "state": "committed",
    "over": True,
    "reason": "",
    "message": "",
    "peer": "127.0.0.1:7400",
    "codec": "fp8",
    "chunks": 4,
    "bytes_raw": 4096,
    "bytes_wire": 2048,
    "digest": "00000000000000aa",
    "lanes": ["tcp:eth0"],
}


def failed(reason: str, message: str = "") -> Json:
    return COMMITTED | {"state": "failed", "reason": reason, "message": message}


@dataclass
class StubSidecar:
    """record: of every transfer, None for one that is not known. state: of `GET /v1/state`. asked: transfers so far."""

    pod: str
    record: Json | None = field(default_factory=lambda: dict(COMMITTED))
    state: Json = field(default_factory=lambda: {"boot_id": "first"})
    asked: list[str] = field(default_factory=list)
    address: str = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/v1/state", self._state)
        app.router.add_get("/v1/transfers/{id}", self._transfer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """From now on nobody answers."""
        await self._runner.cleanup()

    async def _state(self, _: web.Request) -> web.Response:
        return web.json_response({"group": f"models/{self.pod}"} | self.state)

    async def _transfer(self, request: web.Request) -> web.Response:
        self.asked.append(request.match_info["id"])
        if self.record is None:
            return web.json_response({"error": {"message": "not known here", "code": "unknown_transfer"}}, status=404)
        return web.json_response({"id": request.match_info["id"], **self.record})
