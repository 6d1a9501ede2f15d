"""The HTTP port of a process. Who connects and asks nothing takes no place from those who ask."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable

from aiohttp import web

from kvferry_runtime.transport.listening import listen

MOST = 4096
"""Connections at a time, if the process may have twice as many descriptors."""


async def serve(runner: web.AppRunner, host: str, port: int, most: int = MOST) -> None:
    """Set the runner up and listen.

    most: connections at a time, and no more than half of the descriptors that the process may have. One more ends the
    oldest of those for which no request is being worked on; where there is none, it is ended itself.

    Raises:
        OSError: the address is in use or not ours; the runner is set up all the same.
    """
    busy: set[asyncio.BaseProtocol] = set()

    @web.middleware
    async def noted(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        connection = request.protocol
        busy.add(connection)
        try:
            return await handler(request)
        finally:
            busy.discard(connection)

    runner.app.middlewares.insert(0, noted)
    await runner.setup()
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    await _Port(runner, host, port, min(most, descriptors // 2), busy).start()


class _Port(web.BaseSite):
    """busy: connections with a request that is being worked on."""

    def __init__(self, runner: web.AppRunner, host: str, port: int, most: int, busy: set[asyncio.BaseProtocol]) -> None:
        super().__init__(runner)
        self._host = host
        self._port = port
        self._most = most
        self._busy = busy

    @property
    def name(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        await super().start()
        self._server = await listen(self._connection, self._host, self._port)

    def _connection(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        connections = server.connections
        if len(connections) >= self._most:
            idle = next((each for each in connections if each not in self._busy and each.transport is not None), None)
            if idle is None:
                return _TurnedAway()
            assert idle.transport is not None
            idle.transport.abort()
        return server()


class _TurnedAway(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
