"""UCX alone: peers that die or stop, reconnecting, lanes, strangers on its port, and what it needs to run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest

import ucx_peer
from kvferry_contract.config import TransportKind
from kvferry_runtime.errors import ConnectFailed, ConnectionLost, TransportUnavailable
from kvferry_runtime.transport import ucx
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.transport.guarded_ports import GuardedPorts
from kvferry_runtime.transport.ucx import UcxTransport
from kvferry_runtime.transport.ucx_native import holds_messages
from transport_pairs import SECONDS, Pair, connected, dial, open_both, settled, transports

WINDOW = ucx_peer.WINDOW
LANES_KINDS = ("tcp", "auto")
KEPT_BY_UCX = 5
"""Descriptors of a process, once, however many workers it has destroyed by force (`destroy_worker`)."""
STRANGER = "127.9.9.9"
"""A host of its own, as the kernel sees it."""
FATAL = struct.pack("<QBIQQI", 0xCAFEBABE12345678, 33, 20, 8, 1 << 20, 0) + bytes(300)
"""What UCX's connections begin with, and an order to write to an address that nobody has."""


@asynccontextmanager
async def peer_process(kind: str, size: int) -> AsyncIterator[tuple[Connection, int]]:
    """A connection to a peer in another process, data way open, its traffic posted; and its process id."""
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    transport = UcxTransport(TransportKind(kind))
    listener = await transport.listen("127.0.0.1", 0, accepted.put_nowait)
    process = await asyncio.create_subprocess_exec(
        sys.executable, ucx_peer.__file__, kind, str(listener.address[1]), str(size), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        connection = await asyncio.wait_for(accepted.get(), 60)
        address = await connection.receive_control(1 << 14)
        connection.send_control(connection.data_address())
        await connection.open_data(address, SECONDS)
        while (line := await process.stdout.readline()) != b"posted\n":
            assert line, "the peer ended early"
        yield connection, process.pid
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await transport.close()


def traffic(connection: Connection, size: int) -> tuple[list[asyncio.Future[None]], list[bytearray]]:
    """Receives that the peer serves in part, and sends."""
    buffers = [bytearray(size) for _ in range(WINDOW)]
    futures = [connection.receive_data(memoryview(buffer), tag) for tag, buffer in enumerate(buffers, 1)]
    source = bytes(size)
    futures += [connection.send_data(memoryview(source), tag + WINDOW) for tag in range(1, WINDOW + 1)]
    return futures, buffers


@pytest.mark.parametrize("size", [1000, 8 << 20])
@pytest.mark.parametrize("kind", LANES_KINDS)
async def test_a_killed_peer_is_noticed_and_every_buffer_comes_back(kind: str, size: int) -> None:
    async with peer_process(kind, size) as (connection, pid):
        futures, _ = traffic(connection, size)
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ConnectionLost):
            async with asyncio.timeout(SECONDS):
                await connection.receive_control(1000)
        await connection.close(SECONDS)
        assert all(future.done() for future in futures)
        assert connection.leaked == 0
        assert any(isinstance(error, ConnectionLost) for error in await settled(*futures))


@pytest.mark.parametrize("size", [1000, 8 << 20])
@pytest.mark.parametrize("kind", LANES_KINDS)
async def test_closing_does_not_need_a_peer_that_is_stopped(kind: str, size: int) -> None:
    async with peer_process(kind, size) as (connection, pid):
        os.kill(pid, signal.SIGSTOP)
        futures, buffers = traffic(connection, size)
        await asyncio.sleep(0.05)
        await connection.close(SECONDS)
        assert all(future.done() for future in futures)
        assert connection.leaked == 0
        held = [bytes(each) for each in buffers]
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.05)
        assert held == [bytes(each) for each in buffers], "written after the buffer came back"


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [*LANES_KINDS, "shm"])
async def test_reconnecting_at_once_loses_and_leaks_nothing(kind: str, rounds: int) -> None:
    """Case 26, over TCP, shared memory, and what UCX takes by itself."""
    near, far = transports(f"ucx-{kind}")
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await far.listen("127.0.0.1", 0, accepted.put_nowait)
    process = psutil.Process()
    descriptors = []
    try:
        for number in range(rounds):
            dialled = await near.connect(*listener.address, SECONDS)
            taken = await accepted.get()
            await open_both(dialled, taken)
            sent, received = random.Random(number).randbytes(1 << 20), bytearray(1 << 20)
            receive = taken.receive_data(memoryview(received), 1)
            dialled.send_data(memoryview(sent), 1)
            unserved = taken.receive_data(memoryview(bytearray(10)), 2)
            assert await settled(receive) == [None]
            assert received == sent
            taken.send_control(b"got it")
            assert await dialled.receive_control(100) == b"got it"
            await asyncio.wait([asyncio.ensure_future(each.close(SECONDS)) for each in (dialled, taken)])
            assert unserved.done()
            descriptors.append(process.num_fds())
    finally:
        await near.close()
        await far.close()
    assert len(set(descriptors[1:])) == 1, descriptors


@pytest.mark.parametrize("kind", LANES_KINDS)
async def test_closing_in_mid_transfer_again_and_again_leaks_no_descriptor(kind: str) -> None:
    near, far = transports(f"ucx-{kind}")
    process = psutil.Process()
    descriptors = []
    source = bytes(4 << 20)
    for _ in range(12):
        async with connected(near, far) as pair:
            futures = [pair.far.receive_data(memoryview(bytearray(4 << 20)), tag) for tag in (1, 2, 3)]
            futures += [pair.near.send_data(memoryview(source), tag) for tag in (1, 2, 4)]
            await asyncio.sleep(0)
            await pair.far.close(1)
            await pair.near.close(1)
            assert all(future.done() for future in futures)
        descriptors.append(process.num_fds())
    assert len(set(descriptors[1:])) == 1, descriptors


@pytest.mark.parametrize("kind", LANES_KINDS)
async def test_a_message_that_nobody_asked_for_is_known_of(kind: str) -> None:
    near, far = transports(f"ucx-{kind}")
    async with connected(near, far) as pair:
        worker = pair.far._way._worker
        assert not holds_messages(worker)
        pair.near.send_data(memoryview(bytes(8)), 7)
        asked = pair.far.receive_data(memoryview(bytearray(8)), 8)
        pair.near.send_data(memoryview(bytes(8)), 8)
        await asyncio.wait((asked,), timeout=SECONDS)
        assert holds_messages(worker)
        asked = pair.far.receive_data(memoryview(bytearray(8)), 7)
        await asyncio.wait((asked,), timeout=SECONDS)
        assert not holds_messages(worker)
    await near.close()
    await far.close()


@pytest.mark.timeout(240, method="thread")  # a library that waits for ever hears no signal
@pytest.mark.parametrize("kind", LANES_KINDS)
async def test_closing_does_not_wait_for_the_rest_of_what_nobody_asked_for(kind: str) -> None:
    """Of a message without a receive some has come, and the rest stays with a peer to which the way is cut."""
    near, far = transports(f"ucx-{kind}")
    source = memoryview(bytes(64 << 20))
    process = psutil.Process()
    descriptors = []
    for turns in range(12):
        async with connected(near, far) as pair:
            sent = pair.near.send_data(source, 7)
            for _ in range(turns):
                await asyncio.sleep(0)
            await pair.far.close(1)
            await pair.near.close(1)
            assert sent.done()
        descriptors.append(process.num_fds())
    assert max(descriptors) - min(descriptors) <= KEPT_BY_UCX, descriptors
    await near.close()
    await far.close()


@pytest.mark.parametrize(("kind", "expected"), [("tcp", {"tcp"}), ("shm", {"sysv", "posix"})])
async def test_lanes_say_what_the_endpoint_uses(kind: str, expected: set[str]) -> None:
    async with connected(*transports(f"ucx-{kind}")) as pair:
        names = {lane.transport for lane in pair.near.lanes()}
        assert names
        assert names <= expected


async def test_a_peer_that_sends_noise_to_the_ports_of_ucx_changes_nothing() -> None:
    before = _listening_ports()
    async with connected(*transports("ucx-tcp")) as pair:
        ports = _listening_ports() - before - {pair.address}
        assert ports
        noise = random.Random(3)
        for address in sorted(ports):
            for size in (0, 1, 3, 8, 100, 5000):
                with socket.create_connection(address, SECONDS) as stranger:
                    stranger.sendall(noise.randbytes(size))
                    await asyncio.sleep(0.01)
        assert await _carries(pair)


async def test_other_hosts_do_not_reach_the_ports_of_ucx() -> None:
    """A message that begins as UCX's do and goes on with noise would end the process."""
    before = _listening_ports()
    async with connected(*transports("ucx-tcp"), data=False) as pair:
        addresses = [each.data_address() for each in (pair.near, pair.far)]
        ports = _listening_ports() - before - {pair.address}
        assert len(ports) >= 2
        await asyncio.to_thread(_nobody_is_let_in, ports)
        opening = zip((pair.near, pair.far), reversed(addresses), strict=True)
        await asyncio.gather(*(each.open_data(address, SECONDS) for each, address in opening))
        await asyncio.to_thread(_nobody_is_let_in, ports)
        assert await _carries(pair)


@pytest.mark.parametrize("early", [True, False], ids=["sent at once", "sent later"])
@pytest.mark.parametrize("kind", LANES_KINDS)
async def test_who_comes_to_a_port_of_ucx_before_it_is_guarded_says_nothing_to_it(
    kind: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker listens before its ports can be guarded."""
    make = ucx.UcxLibrary.worker
    strangers: list[socket.socket] = []
    ports: set[tuple[str, int]] = set()

    def visited(library: ucx.UcxLibrary, context: object) -> object:
        before = _listening_ports()
        worker = make(library, context)
        for address in _listening_ports() - before:
            ports.add(address)
            source = STRANGER if address[0].startswith("127.") else address[0]
            strangers.append(socket.create_connection(address, SECONDS, source_address=(source, 0)))
            if early:
                strangers[-1].sendall(FATAL)
        return worker

    monkeypatch.setattr(ucx.UcxLibrary, "worker", visited)
    async with connected(*transports(f"ucx-{kind}")) as pair:
        for stranger in strangers:
            with contextlib.suppress(OSError):
                stranger.sendall(FATAL)
        assert await _carries(pair)
        assert len(strangers) >= 2
        for stranger in strangers:
            stranger.settimeout(SECONDS)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
            stranger.close()
    assert not ports & {tuple(entry.laddr) for entry in psutil.Process().net_connections("tcp4")}


async def test_a_peer_whose_ports_do_not_answer_does_not_stop_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default UCX waits in connect, for minutes."""
    monkeypatch.setattr(GuardedPorts, "admit", lambda ports, hosts: None)
    async with connected(*transports("ucx-tcp"), data=False) as pair:
        addresses = [each.data_address() for each in (pair.far, pair.near)]
        opening = zip((pair.near, pair.far), addresses, strict=True)
        answers = await asyncio.gather(*(each.open_data(one, 0.5) for each, one in opening), return_exceptions=True)
        assert [type(each) for each in answers] == [ConnectFailed, ConnectFailed]


async def test_a_network_that_changes_is_seen_by_the_next_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = transports("ucx-tcp")
    contexts = []
    make = ucx.UcxLibrary.context
    monkeypatch.setattr(ucx.UcxLibrary, "context", lambda *args: contexts.append(1) or make(*args))
    async with connected(near, far) as pair:
        await open_both(*await dial(near, far))
        assert len(contexts) == 2
        monkeypatch.setattr(ucx, "network_snapshot", lambda: ("eth7",))
        for _ in range(2):
            await open_both(*await dial(near, far))
            assert len(contexts) == 4
        futures = [pair.far.receive_data(memoryview(bytearray(1)), 1), pair.near.send_data(memoryview(b"1"), 1)]
        assert await settled(*futures) == [None, None]


async def test_the_environment_of_the_process_stays_as_it_was() -> None:
    before = dict(os.environ)
    async with connected(*transports("ucx-tcp")):
        pass
    assert {name for name in os.environ if name.startswith("UCX_")} == {
        name for name in before if name.startswith("UCX_")
    }


async def test_no_usable_device_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "nosuch0")
    async with connected(*transports("ucx-tcp"), data=False) as pair:
        with pytest.raises(TransportUnavailable, match=r"(?s)tcp.*UCX_NET_DEVICES.*nosuch0"):
            pair.near.data_address()


def test_a_missing_binding_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ucxx._lib", None)
    with pytest.raises(TransportUnavailable, match=r"kvferry\[sidecar\]"):
        UcxTransport()


async def _carries(pair: Pair) -> bool:
    received = bytearray(5)
    futures = [pair.far.receive_data(memoryview(received), 1), pair.near.send_data(memoryview(b"still"), 1)]
    return await settled(*futures) == [None, None] and received == b"still"


def _nobody_is_let_in(ports: set[tuple[str, int]]) -> None:
    """The kernel answers a host that it does not let in with nothing at all."""
    for address in ports:
        with pytest.raises(TimeoutError):
            socket.create_connection(address, 0.5, source_address=(STRANGER, 0))


def _listening_ports() -> set[tuple[str, int]]:
    """Addresses and TCP ports on which this process listens."""
    return {
        (entry.laddr.ip, entry.laddr.port)
        for entry in psutil.Process().net_connections("tcp4")
        if entry.status == psutil.CONN_LISTEN
    }
