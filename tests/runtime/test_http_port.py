"""Connections that ask nothing take no place from those who ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web

from kvferry_runtime import http_port
from sidecar_pods import until

MOST = 4
SECONDS = 30.0
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Service:
    """`/now` is answered at once, `/later` when `gate` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.working = 0
        self.port = 0

    async def client(self, said: bytes = b"") -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(said)
        return reader, writer

    async def ask(self, path: str) -> int:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{path}") as answer:
            return answer.status

    async def now(self, _: web.Request) -> web.Response:
        return web.Response()

    async def later(self, _: web.Request) -> web.Response:
        self.working += 1
        await self.gate.wait()
        return web.Response()


@asynccontextmanager
async def serving(most: int) -> AsyncIterator[Service]:
    service = Service()
    app = web.Application()
    app.add_routes([web.get("/now", service.now), web.get("/later", service.later)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    try:
        async with asyncio.timeout(SECONDS):
            await http_port.serve(runner, "127.0.0.1", 0, most)
            service.port = runner.addresses[0][1]
            yield service
    finally:
        service.gate.set()
        await runner.cleanup()


async def end(client: Client) -> None:
    """Wait for it."""
    reader, writer = client
    with suppress(ConnectionResetError):
        await reader.read()
    writer.close()
    with suppress(ConnectionResetError):
        await writer.wait_closed()


@pytest.mark.parametrize(
    "said", [b"", b"GET /now HTT", b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"]
)
async def test_the_oldest_that_waits_for_nothing_makes_room(said: bytes) -> None:
    async with serving(MOST) as service:
        strangers = [await service.client(said) for _ in range(5 * MOST)]
        assert await service.ask("/now") == 200
        for each in strangers[: 3 * MOST]:
            await end(each)
        for _, writer in strangers[3 * MOST :]:
            writer.close()


async def test_a_request_that_is_worked_on_keeps_its_connection() -> None:
    async with serving(MOST) as service:
        asked = [asyncio.ensure_future(service.ask("/later")) for _ in range(MOST)]
        await until(lambda: service.working == MOST)
        await end(await service.client())
        service.gate.set()
        assert await asyncio.gather(*asked) == [200] * MOST
        assert await service.ask("/now") == 200
