"""The control socket: order, bounds, one agent at a time, and what happens when a side goes away."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvferry_contract import paths
from kvferry_runtime.errors import RingError, RingUnavailable, SettingsError
from kvferry_runtime.ring import packets
from kvferry_runtime.ring import socket as ring_socket
from kvferry_runtime.ring.messages import (
    MAX_PACKET_BYTES,
    Beat,
    Consumed,
    FromSidecar,
    ManifestLayer,
    Refused,
    SealOffer,
    Sent,
)
from kvferry_runtime.ring.socket import AgentChannel, AgentServer, SidecarSocket


class Sidecar:
    """An `AgentServer` and the channels that it accepted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = AgentServer()
        self.accepted: asyncio.Queue[AgentChannel] = asyncio.Queue()

    async def agent(self) -> tuple[AgentChannel, SidecarSocket]:
        theirs = SidecarSocket.connect(self.folder)
        return await asyncio.wait_for(self.accepted.get(), 5), theirs


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[Sidecar]:
    sidecar = Sidecar(tmp_path)
    await sidecar.server.start(tmp_path, sidecar.accepted.put_nowait)
    yield sidecar
    await sidecar.server.close()
    assert not (tmp_path / paths.RING_SOCKET).exists()


def sent(number: int) -> Sent:
    return Sent(f"{number:032x}", True, "", "x" * 1024)


def read(theirs: SidecarSocket) -> FromSidecar:
    """Wait for a message in the test's thread."""
    poller = select.poll()
    poller.register(theirs, select.POLLIN)
    assert poller.poll(5000)
    message = theirs.receive()
    assert message is not None
    return message


async def test_messages_keep_their_order_both_ways(sidecar: Sidecar) -> None:
    channel, theirs = await sidecar.agent()
    for number in range(100):
        theirs.send(Beat(number))
    assert [await channel.receive() for _ in range(100)] == [Beat(number) for number in range(100)]
    for number in range(20):
        channel.send(sent(number))
    assert [read(theirs) for _ in range(20)] == [sent(number) for number in range(20)]
    assert theirs.receive() is None
    theirs.close()


async def test_send_never_blocks_and_loses_nothing_while_the_agent_does_not_read(sidecar: Sidecar) -> None:
    channel, theirs = await sidecar.agent()
    for number in range(3000):
        channel.send(sent(number))
    received: list[FromSidecar] = []
    while len(received) < 3000:
        while message := theirs.receive():
            received.append(message)
        await asyncio.sleep(0)
    assert received == [sent(number) for number in range(3000)]
    theirs.close()


async def test_an_agent_that_never_reads_is_given_up(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_socket, "MAX_QUEUED", 10)
    channel, theirs = await sidecar.agent()
    with pytest.raises(RingUnavailable, match="unread"):
        for number in range(100_000):
            channel.send(sent(number))
    assert channel.closed
    with pytest.raises(RingUnavailable):
        await channel.receive()
    theirs.close()


async def test_a_second_agent_is_refused_and_the_first_goes_on(sidecar: Sidecar) -> None:
    channel, first = await sidecar.agent()
    second = SidecarSocket.connect(sidecar.folder)
    for _ in range(3):
        await asyncio.sleep(0)
    refused = read(second)
    assert isinstance(refused, Refused) and "another engine" in refused.message
    with pytest.raises(RingUnavailable):
        while True:
            second.receive()
    first.send(Beat(1))
    assert await channel.receive() == Beat(1)

    first.close()
    with pytest.raises(RingUnavailable):
        await channel.receive()
    channel, third = await sidecar.agent()
    third.send(Beat(3))
    assert await channel.receive() == Beat(3)
    second.close()
    third.close()


async def test_closing_wakes_both_sides(sidecar: Sidecar) -> None:
    channel, theirs = await sidecar.agent()
    receiving = asyncio.create_task(channel.receive())
    await asyncio.sleep(0)
    channel.close()
    channel.close()
    with pytest.raises(RingUnavailable):
        await asyncio.wait_for(receiving, 5)
    with pytest.raises(RingUnavailable):
        channel.send(sent(1))
    with pytest.raises(RingUnavailable):
        theirs.receive()
    theirs.close()


async def test_a_cancelled_receive_loses_nothing(sidecar: Sidecar) -> None:
    channel, theirs = await sidecar.agent()
    receiving = asyncio.create_task(channel.receive())
    await asyncio.sleep(0)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    theirs.send(Beat(1))
    assert await asyncio.wait_for(channel.receive(), 5) == Beat(1)
    theirs.close()


@pytest.mark.parametrize(
    "packet",
    [
        b"\xff\xff\xff",
        b"\x81\xa1t\xa4evil",
        packets.encode(sent(1)),
        packets.encode(Beat(1)) + b"\0",
        b"\0" * (MAX_PACKET_BYTES + 1),
        packets.encode(Consumed("0" * 32, 1, 1, True)).replace(b"0" * 32, b"Z" * 32),
    ],
    ids=["not-msgpack", "unknown-type", "wrong-direction", "trailing", "too-large", "bad-id"],
)
async def test_what_is_no_message_closes_the_channel(sidecar: Sidecar, packet: bytes) -> None:
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    raw.connect(str(sidecar.folder / paths.RING_SOCKET))
    channel = await asyncio.wait_for(sidecar.accepted.get(), 5)
    raw.send(packet)
    with pytest.raises(RingError):
        await channel.receive()
    assert channel.closed
    raw.close()


def test_a_message_larger_than_a_packet_is_refused_by_its_sender() -> None:
    packets.encode(SealOffer("0" * 32, 1, [ManifestLayer(2**31, 2**31, 2**31)] * 1024, 0, 1, 1))
    with pytest.raises(RingError, match="65536 are possible"):
        packets.encode(SealOffer("0" * 32, 1, [ManifestLayer(2**31, 2**31, 2**31)] * 5000, 0, 1, 1))


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(RingUnavailable, match="no sidecar at"):
        SidecarSocket.connect(tmp_path)


async def test_a_socket_left_by_a_dead_sidecar_is_replaced(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dead.bind(str(tmp_path / paths.RING_SOCKET))
    dead.close()
    sidecar = Sidecar(tmp_path)
    await sidecar.server.start(tmp_path, sidecar.accepted.put_nowait)
    _, theirs = await sidecar.agent()
    theirs.close()
    await sidecar.server.close()


async def test_a_folder_that_takes_no_socket(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot listen on"):
        await AgentServer().start(tmp_path / "absent", lambda _: None)


async def test_a_folder_with_a_long_path(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    sidecar = Sidecar(deep)
    await sidecar.server.start(deep, sidecar.accepted.put_nowait)
    _, theirs = await sidecar.agent()
    theirs.close()
    await sidecar.server.close()


async def test_listening_goes_on_after_an_accept_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E.g. because no descriptor was free for a moment."""
    monkeypatch.setattr(ring_socket, "ACCEPT_RETRY_SECONDS", 0.01)
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, [OSError(errno.EMFILE, "Too many open files")]

    async def flaky(sock: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return await accept(sock)

    monkeypatch.setattr(loop, "sock_accept", flaky)
    sidecar = Sidecar(tmp_path)
    await sidecar.server.start(tmp_path, sidecar.accepted.put_nowait)
    ours, theirs = await sidecar.agent()
    theirs.send(Beat(1))
    assert await ours.receive() == Beat(1)
    theirs.close()
    await sidecar.server.close()
