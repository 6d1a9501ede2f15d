"""A rush at a listening port, and a process that has no descriptor free."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import ExitStack

import pytest

from kvferry_runtime.transport.listening import listen
from sidecar_pods import until

SECONDS = 30.0
MANY = 100


class Taken(asyncio.Protocol):
    """A client that is taken hears a byte."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"!")


async def test_all_of_a_rush_are_taken_one_by_one() -> None:
    """The owner of the port has had its turn with each of them before the next one comes."""
    total = open_now = most = 0

    class Counted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal total, open_now, most
            total += 1
            open_now += 1
            most = max(most, open_now)
            assert isinstance(transport, asyncio.Transport)
            transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            nonlocal open_now
            open_now -= 1

    server = await listen(Counted, "127.0.0.1", 0)
    with ExitStack() as clients:
        for _ in range(MANY):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.sockets[0].getsockname())
        await until(lambda: total == MANY and not open_now)
    server.close()
    assert most < MANY / 10


async def test_no_free_descriptor_is_told_of_once_a_try_and_passes(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio tells of it, and plans another try, once for each connection that it would take at once."""
    server = await listen(Taken, "127.0.0.1", 0)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as client:
        client.setblocking(False)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
            client.connect_ex(server.sockets[0].getsockname())
            await until(lambda: bool(caplog.records))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert len(caplog.records) <= 2, caplog.text
        async with asyncio.timeout(SECONDS):
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b"!"
    server.close()
