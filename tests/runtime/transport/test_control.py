"""The TCP control way: strangers, peers that do not read, resets, frames cut anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvferry_runtime.errors import ConnectFailed, ConnectionLost, FrameError, TransportUnavailable
from kvferry_runtime.transport.control import ControlChannel, ControlListener, connect_control, listen_control
from kvferry_runtime.wire.frames import HEADER_BYTES, encode_frame

LIMIT = 1 << 16
SECONDS = 30.0


class Port:
    """A listening port and the channels that came in."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[ControlChannel] = asyncio.Queue()
        self.listener: ControlListener

    async def stranger(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, ControlChannel]:
        """A plain TCP connection to the port, and our end of it."""
        reader, writer = await asyncio.open_connection(*self.listener.address)
        return reader, writer, await self.accepted.get()


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    made.listener = await listen_control("127.0.0.1", 0, made.accepted.put_nowait)
    yield made
    await made.listener.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(min_size=HEADER_BYTES, max_size=4096))
def test_random_bytes_end_the_connection(noise: bytes) -> None:
    async def scenario() -> None:
        made = Port()
        made.listener = await listen_control("127.0.0.1", 0, made.accepted.put_nowait)
        _, writer, channel = await made.stranger()
        writer.write(noise)
        with pytest.raises(FrameError):
            await channel.receive(LIMIT)
        with pytest.raises(FrameError):
            await channel.receive(LIMIT)
        with pytest.raises((FrameError, ConnectionLost)):
            channel.send(b"")
        writer.close()
        await channel.close(1)
        await made.listener.close()

    if not noise.startswith(b"KVFC"):
        asyncio.run(scenario())


async def test_a_frame_that_promises_too_much_is_refused_on_its_header(port: Port) -> None:
    _, writer, channel = await port.stranger()
    writer.write(encode_frame(bytes(500))[:HEADER_BYTES])
    with pytest.raises(FrameError, match="500"):
        await channel.receive(499)
    writer.close()
    await channel.close(1)


async def test_frames_cut_anywhere_come_out_whole(port: Port) -> None:
    draw = random.Random(1)
    payloads = [draw.randbytes(draw.choice((0, 1, 11, 12, 13, 5000, LIMIT))) for _ in range(30)]
    stream = b"".join(map(encode_frame, payloads))
    _, writer, channel = await port.stranger()

    async def trickle() -> None:
        at = 0
        while at < len(stream):
            step = draw.choice((1, 7, 12, 4000, 100_000))
            writer.write(stream[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)
            at += step

    sending = asyncio.ensure_future(trickle())
    assert [await channel.receive(LIMIT) for _ in payloads] == payloads
    await sending
    writer.close()
    await channel.close(1)


async def test_a_truncated_frame_is_a_lost_connection(port: Port) -> None:
    _, writer, channel = await port.stranger()
    writer.write(encode_frame(b"whole") + encode_frame(b"half of it")[:-4])
    writer.close()
    assert await channel.receive(LIMIT) == b"whole"
    with pytest.raises(ConnectionLost, match="closed"):
        await channel.receive(LIMIT)
    await channel.close(1)


async def test_a_reset_is_noticed_by_who_waits(port: Port) -> None:
    _, writer, channel = await port.stranger()
    waiting = asyncio.ensure_future(channel.receive(LIMIT))
    await asyncio.sleep(0)
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    with pytest.raises(ConnectionLost):
        async with asyncio.timeout(SECONDS):
            await waiting
    await channel.close(1)


async def test_closing_after_a_reset_that_was_not_noticed_yet(port: Port) -> None:
    _, writer, channel = await port.stranger()
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await asyncio.sleep(0)
    async with asyncio.timeout(SECONDS):
        await channel.close(1)
    with pytest.raises(ConnectionLost):
        await channel.receive(LIMIT)


async def test_a_peer_that_does_not_read_fills_a_bounded_queue(port: Port) -> None:
    _, writer, channel = await port.stranger()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    payload = bytes(1 << 20)
    with pytest.raises(ConnectionLost, match="does not read"):
        for _ in range(64):
            channel.send(payload)
    with pytest.raises(ConnectionLost):
        await channel.receive(LIMIT)
    writer.close()
    await channel.close(1)


async def test_nothing_is_read_ahead_without_bound(port: Port) -> None:
    _, writer, channel = await port.stranger()
    flood = b"".join(encode_frame(bytes(1000)) for _ in range(16_000))
    writer.write(flood)
    for _ in range(200):
        await asyncio.sleep(0.001)
    assert writer.transport.get_write_buffer_size() > 0
    writer.transport.abort()
    await channel.close(1)


async def test_last_words_arrive_although_the_peer_was_still_talking(port: Port) -> None:
    channel = await connect_control(*port.listener.address, SECONDS)
    other = await port.accepted.get()
    for _ in range(50):
        channel.send(bytes(1000))
    other.send(b"rejected, because")
    closing = asyncio.ensure_future(other.close(SECONDS))
    assert await channel.receive(LIMIT) == b"rejected, because"
    with pytest.raises(ConnectionLost):
        await channel.receive(LIMIT)
    await channel.close(1)
    await closing


async def test_closing_is_bounded_when_the_peer_keeps_its_side_open(port: Port) -> None:
    _, writer, channel = await port.stranger()
    async with asyncio.timeout(SECONDS):
        await channel.close(0.05)
    writer.close()


async def test_an_address_in_use_is_named(port: Port) -> None:
    host, number = port.listener.address
    with pytest.raises(TransportUnavailable, match=f"{host}:{number}.*in use"):
        await listen_control(host, number, port.accepted.put_nowait)
    with pytest.raises(TransportUnavailable, match=r"192\.0\.2\.1:7400"):
        await listen_control("192.0.2.1", 7400, port.accepted.put_nowait)


async def test_no_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    with pytest.raises(ConnectFailed, match=r"10\.0\.0\.9:7400 within 0\.01 s"):
        await connect_control("10.0.0.9", 7400, 0.01)


async def test_an_owner_that_cannot_take_a_connection_costs_only_that_connection(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(channel: ControlChannel) -> None:
        raise KeyError("no room")

    listener = await listen_control("127.0.0.1", 0, refuse)
    reader, writer = await asyncio.open_connection(*listener.address)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    await listener.close()
    assert "no room" in caplog.text
