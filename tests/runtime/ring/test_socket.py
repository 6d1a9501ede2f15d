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
    FromAgent,
    FromSidecar,
    ManifestLayer,
    Refused,
    SealOffer,
    Sent,
)
from kvferry_runtime.ring.socket import AgentChannel, AgentServer, SidecarSocket

SECONDS = 30.0


class Agent:
    """An accepted agent as its sidecar hears it."""

    def __init__(self, channel: AgentChannel) -> None:
        self.channel = channel
        self._heard: asyncio.Queue[FromAgent | RingError] = asyncio.Queue()
        channel.start(self._hear, self._heard.put_nowait)

    async def next(self) -> FromAgent:
        """Raises what ended the connection."""
        heard = await asyncio.wait_for(self._heard.get(), SECONDS)
        if isinstance(heard, RingError):
            raise heard
        return heard

    def _hear(self, messages: list[FromAgent]) -> None:
        for message in messages:
            self._heard.put_nowait(message)


class Sidecar:
    """An `AgentServer` and the agents that it accepted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = AgentServer()
        self._accepted: asyncio.Queue[Agent] = asyncio.Queue()

    async def start(self) -> None:
        await self.server.start(self.folder, lambda channel: self._accepted.put_nowait(Agent(channel)))

    async def accept(self) -> Agent:
        return await asyncio.wait_for(self._accepted.get(), SECONDS)

    async def agent(self) -> tuple[Agent, SidecarSocket]:
        theirs = SidecarSocket.connect(self.folder)
        return await self.accept(), theirs


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[Sidecar]:
    sidecar = Sidecar(tmp_path)
    await sidecar.start()
    yield sidecar
    await sidecar.server.close()
    assert not (tmp_path / paths.RING_SOCKET).exists()


def sent(number: int) -> Sent:
    return Sent(f"{number:032x}", True, "", "x" * 1024)


def read(theirs: SidecarSocket) -> list[FromSidecar]:
    """Wait for a packet in the test's thread."""
    poller = select.poll()
    poller.register(theirs, select.POLLIN)
    assert poller.poll(SECONDS * 1000)
    return theirs.receive()


async def test_messages_keep_their_order_both_ways(sidecar: Sidecar) -> None:
    agent, theirs = await sidecar.agent()
    for number in range(100):
        theirs.send(Beat(number))
    assert [await agent.next() for _ in range(100)] == [Beat(number) for number in range(100)]
    for number in range(20):
        agent.channel.send(sent(number))
    await asyncio.sleep(0)
    assert read(theirs) == [sent(number) for number in range(20)]
    assert theirs.receive() == []
    theirs.close()


async def test_messages_of_one_turn_share_packets_however_large_they_are(sidecar: Sidecar) -> None:
    agent, theirs = await sidecar.agent()
    for number in range(200):
        theirs.send(Beat(number), more=True)
    theirs.flush()
    assert [await agent.next() for _ in range(200)] == [Beat(number) for number in range(200)]
    large = [Sent(f"{number:032x}", True, "x" * 256, "ü" * 1024) for number in range(60)]
    for message in large:
        agent.channel.send(message)
    await asyncio.sleep(0)
    found = [read(theirs)]
    while sum(map(len, found)) < len(large):
        found.append(read(theirs))
    assert [message for packet in found for message in packet] == large
    assert len(found) == 3
    theirs.close()


async def test_what_was_said_before_closing_arrives(sidecar: Sidecar) -> None:
    agent, theirs = await sidecar.agent()
    agent.channel.send(sent(1))
    agent.channel.close()
    assert read(theirs) == [sent(1)]
    theirs.close()
    agent, theirs = await sidecar.agent()
    theirs.send(Beat(1), more=True)
    theirs.close()
    assert await agent.next() == Beat(1)
    with pytest.raises(RingUnavailable, match="went away"):
        await agent.next()


async def test_send_never_blocks_and_loses_nothing_while_the_agent_does_not_read(sidecar: Sidecar) -> None:
    agent, theirs = await sidecar.agent()
    for number in range(3000):
        agent.channel.send(sent(number))
    received: list[FromSidecar] = []
    while len(received) < 3000:
        received += theirs.receive()
        await asyncio.sleep(0)
    assert received == [sent(number) for number in range(3000)]
    theirs.close()


async def test_an_agent_that_never_reads_is_given_up(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_socket, "MAX_QUEUED", 100)
    agent, theirs = await sidecar.agent()
    with pytest.raises(RingUnavailable, match="unread"):
        for number in range(100_000):
            agent.channel.send(sent(number))
    assert agent.channel.closed
    with pytest.raises(RingUnavailable, match="unread"):
        await agent.next()
    theirs.close()


async def test_a_second_agent_is_refused_and_the_first_goes_on(sidecar: Sidecar) -> None:
    agent, first = await sidecar.agent()
    second = SidecarSocket.connect(sidecar.folder)
    for _ in range(3):
        await asyncio.sleep(0)
    (refused,) = read(second)
    assert isinstance(refused, Refused) and "another engine" in refused.message
    with pytest.raises(RingUnavailable):
        while True:
            second.receive()
    first.send(Beat(1))
    assert await agent.next() == Beat(1)

    first.close()
    with pytest.raises(RingUnavailable):
        await agent.next()
    agent, third = await sidecar.agent()
    third.send(Beat(3))
    assert await agent.next() == Beat(3)
    second.close()
    third.close()


async def test_after_closing_nothing_goes_either_way(sidecar: Sidecar) -> None:
    agent, theirs = await sidecar.agent()
    agent.channel.close()
    agent.channel.close()
    with pytest.raises(RingUnavailable):
        agent.channel.send(sent(1))
    with pytest.raises(RingUnavailable):
        theirs.receive()
    theirs.close()


@pytest.mark.parametrize(
    "packet",
    [
        b"\xff\xff\xff",
        b"\x81\xa1t\xa4evil",
        packets.encode(sent(1)),
        packets.encode(Beat(1)) + b"\0",
        packets.encode_message(Beat(1)),
        packets.packet_of([]),
        b"\0" * (MAX_PACKET_BYTES + 1),
        packets.encode(Consumed("0" * 32, 1, 1, True)).replace(b"0" * 32, b"Z" * 32),
    ],
    ids=["not-msgpack", "no-list", "wrong-direction", "trailing", "one-alone", "none", "too-large", "bad-id"],
)
async def test_what_is_no_message_closes_the_channel(sidecar: Sidecar, packet: bytes) -> None:
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    raw.connect(str(sidecar.folder / paths.RING_SOCKET))
    agent = await sidecar.accept()
    raw.send(packet)
    with pytest.raises(RingError, match="packet of"):
        await agent.next()
    assert agent.channel.closed
    raw.close()


def test_a_message_larger_than_a_packet_is_refused_by_its_sender() -> None:
    packets.encode(SealOffer("0" * 32, 1, [ManifestLayer(2**31, 2**31, 2**31)] * 1024, 0, 1, 1))
    with pytest.raises(RingError, match="65533 are possible"):
        packets.encode(SealOffer("0" * 32, 1, [ManifestLayer(2**31, 2**31, 2**31)] * 5000, 0, 1, 1))


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(RingUnavailable, match="no sidecar at"):
        SidecarSocket.connect(tmp_path)


async def test_a_socket_left_by_a_dead_sidecar_is_replaced(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dead.bind(str(tmp_path / paths.RING_SOCKET))
    dead.close()
    sidecar = Sidecar(tmp_path)
    await sidecar.start()
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
    await sidecar.start()
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
    await sidecar.start()
    ours, theirs = await sidecar.agent()
    theirs.send(Beat(1))
    assert await ours.next() == Beat(1)
    theirs.close()
    await sidecar.server.close()
