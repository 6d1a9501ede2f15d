"""A transport within one process and one event loop, for tests of what is built on transports.

It keeps every promise of `base`, in the strictest way: a send is done only when a receive took its bytes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvferry_runtime.errors import ConnectFailed, ConnectionLost, FrameError, TransportError, TransportUnavailable
from kvferry_runtime.transport.base import Connection, Lane, Listener, Transport
from kvferry_runtime.transport.buffers import BufferFuture, checked_tag, lent_view
from kvferry_runtime.wire.frames import MAX_CONTROL_BYTES

MAX_QUEUED_PAYLOADS = 4096
FIRST_PORT = 1024
LANE = Lane("memory", "process")


class MemoryNetwork:
    """What the transports of one test can reach: all that were made from the same network."""

    def __init__(self) -> None:
        self._listeners: dict[tuple[str, int], MemoryListener] = {}
        self._ports = itertools.count(FIRST_PORT)
        self._names = itertools.count(1)

    def transport(self) -> MemoryTransport:
        """A transport on this network."""
        return MemoryTransport(self, f"memory-{next(self._names)}")

    def bind(self, host: str, port: int, on_connection: Callable[[MemoryConnection], None]) -> MemoryListener:
        """Raises: TransportUnavailable: the address is taken."""
        address = (host, port or next(self._ports))
        if address in self._listeners:
            raise TransportUnavailable(f"cannot listen on {host}:{port}: address already in use")
        listener = self._listeners[address] = MemoryListener(self, address, on_connection)
        return listener

    def unbind(self, listener: MemoryListener) -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def dial(self, host: str, port: int, caller: str) -> tuple[MemoryConnection, MemoryConnection]:
        """Both ends of a new connection, the caller's first. Raises: ConnectFailed: nobody listens there."""
        listener = self._listeners.get((host, port))
        if listener is None:
            raise ConnectFailed(f"cannot connect to {host}:{port}: connection refused")
        near, far = MemoryConnection(f"{host}:{port}"), MemoryConnection(caller)
        near.other, far.other = far, near
        return near, listener.accept(far)


class MemoryTransport(Transport):
    """Made by `MemoryNetwork.transport`."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self._network = network
        self._name = name
        self._connections: list[MemoryConnection] = []
        self._listeners: list[MemoryListener] = []

    @property
    def name(self) -> str:
        return self._name

    async def listen(self, host: str, port: int, on_connection: Callable[[Connection], None]) -> Listener:
        def accepted(connection: MemoryConnection) -> None:
            self._connections.append(connection)
            on_connection(connection)

        listener = self._network.bind(host, port, accepted)
        self._listeners.append(listener)
        return listener

    async def connect(self, host: str, port: int, timeout: float) -> Connection:
        near, _ = self._network.dial(host, port, self._name)
        self._connections.append(near)
        return near

    async def close(self) -> None:
        for listener in self._listeners:
            await listener.close()
        for connection in self._connections:
            await connection.close(0)
        self._listeners.clear()
        self._connections.clear()


class MemoryListener(Listener):
    def __init__(
        self, network: MemoryNetwork, address: tuple[str, int], on_connection: Callable[[MemoryConnection], None]
    ) -> None:
        self._network = network
        self._address = address
        self._on_connection = on_connection

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    async def close(self) -> None:
        self._network.unbind(self)

    def accept(self, connection: MemoryConnection) -> MemoryConnection:
        asyncio.get_running_loop().call_soon(self._on_connection, connection)
        return connection


@dataclass(slots=True)
class _Loan:
    view: memoryview
    future: BufferFuture


class MemoryConnection(Connection):
    """One end of a connection."""

    other: MemoryConnection

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._failure: ConnectionLost | None = None
        self._closed = False
        self._opened: bytes | None = None
        self._opening = asyncio.Event()
        self._sends: dict[int, deque[_Loan]] = {}
        self._receives: dict[int, deque[_Loan]] = {}

    @property
    def peer(self) -> str:
        return self._peer

    def send_control(self, payload: bytes) -> None:
        if len(payload) > MAX_CONTROL_BYTES:
            raise FrameError(f"control payload of {len(payload)} bytes; at most {MAX_CONTROL_BYTES} are allowed")
        if self._failure is None and len(self.other._inbox) >= MAX_QUEUED_PAYLOADS:
            self.reset(f"{self._peer} does not read: {MAX_QUEUED_PAYLOADS} payloads wait")
        if self._failure is not None:
            raise ConnectionLost(str(self._failure))
        self.other._inbox.append(bytes(payload))
        self.other._arrived.set()

    async def receive_control(self, limit: int) -> bytes:
        while not self._inbox or self._closed:
            if self._failure is not None:
                raise ConnectionLost(str(self._failure))
            self._arrived.clear()
            await self._arrived.wait()
        if len(self._inbox[0]) > limit:
            self._inbox.clear()
            self._fail(ConnectionLost("the stream is broken"))
            raise FrameError(f"a larger payload than the {limit} bytes that are allowed")
        return self._inbox.popleft()

    def data_address(self) -> bytes:
        return f"memory:{id(self):x}".encode()

    async def open_data(self, peer_address: bytes, timeout: float) -> None:
        if self._failure is not None or peer_address != self.other.data_address():
            raise ConnectFailed(f"the data address of {self._peer} is not that of this connection's peer")
        self._opened = peer_address
        self.other._opening.set()
        try:
            async with asyncio.timeout(timeout):
                await self._opening.wait()
        except TimeoutError as error:
            raise ConnectFailed(f"{self._peer} did not answer on the data way within {timeout:g} s") from error
        if self._failure is not None:
            raise ConnectFailed(str(self._failure))

    def send_data(self, buffer: memoryview, tag: int) -> BufferFuture:
        return self._post(self._sends, lent_view(buffer, writable=False), checked_tag(tag))

    def receive_data(self, buffer: memoryview, tag: int) -> BufferFuture:
        return self._post(self._receives, lent_view(buffer, writable=True), checked_tag(tag))

    def lanes(self) -> tuple[Lane, ...]:
        return (LANE,) if self._opened is not None and self._failure is None else ()

    def reset(self, reason: str = "connection reset") -> None:
        """Lose the connection at once, at both ends, as when a process is killed."""
        for end in (self, self.other):
            end._inbox.clear()
            end._fail(ConnectionLost(f"{end._peer}: {reason}"))

    async def close(self, timeout: float) -> None:
        if not self._closed:
            self._closed = True
            self._fail(ConnectionLost(f"connection to {self._peer} is closed"))
            self.other._fail(ConnectionLost(f"{self.other._peer} closed the connection"))

    @property
    def leaked(self) -> int:
        return 0

    def _post(self, lent: dict[int, deque[_Loan]], view: memoryview, tag: int) -> BufferFuture:
        future = BufferFuture(loop=self._loop)
        if self._opened is None or self._failure is not None:
            future.give_back(self._failure or ConnectionLost(f"the data way to {self._peer} is not open"))
            return future
        lent.setdefault(tag, deque()).append(_Loan(view, future))
        source, target = (self, self.other) if lent is self._sends else (self.other, self)
        self._loop.call_soon(source._match, target, tag)
        return future

    def _match(self, target: MemoryConnection, tag: int) -> None:
        """Carry one message of this end to the receive with the same tag at the other, if both are there."""
        sends, receives = self._sends.get(tag), target._receives.get(tag)
        if not sends or not receives:
            return
        sent, received = sends.popleft(), receives.popleft()
        if not sends:
            del self._sends[tag]
        if not receives:
            del target._receives[tag]
        size, room = sent.view.nbytes, received.view.nbytes
        if size <= room:
            received.view[:size] = sent.view
            received.future.give_back()
        else:
            received.future.give_back(TransportError(f"{target._peer} sent {size} bytes, the buffer holds {room}"))
        sent.future.give_back()

    def _fail(self, error: ConnectionLost) -> None:
        """No more traffic. Payloads that arrived before stay readable."""
        if self._failure is None:
            self._failure = error
        self._arrived.set()
        self._opening.set()
        lent = [loan for table in (self._sends, self._receives) for loans in table.values() for loan in loans]
        self._sends.clear()
        self._receives.clear()
        for loan in lent:
            loan.future.give_back(self._failure)
