"""Chunks by UCX, control by TCP.

Every connection has a UCX worker of its own, driven by the event loop: its event descriptor is watched, and whenever it
is readable, or something was posted, the worker makes progress until it can be armed again. No thread, no polling.
A worker for each connection costs ten descriptors and a few MiB, and buys that tags and stray messages of one peer can
never meet the receives of another, and that everything of a connection ends with it.

Peers are reached by worker address, which travels on the control way after both have proved the key. The ports on which
UCX waits for them are closed to all other hosts.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvferry_contract.config import TransportKind
from kvferry_runtime.errors import ConnectFailed, ConnectionLost, TransportError, TransportUnavailable
from kvferry_runtime.transport.base import Connection, Lane, Listener, Transport
from kvferry_runtime.transport.buffers import BufferFuture, checked_tag, lent_view
from kvferry_runtime.transport.control import ControlChannel, connect_control, listen_control
from kvferry_runtime.transport.data_address import DIGEST_BYTES, digest, pack, unpack
from kvferry_runtime.transport.guarded_ports import GuardedPorts, descriptors, listeners, opened
from kvferry_runtime.transport.hosts import Host, is_ours
from kvferry_runtime.transport.interfaces import network_snapshot
from kvferry_runtime.transport.ucx_library import UcxLibrary
from kvferry_runtime.transport.ucx_native import destroy_worker, endpoint_lanes, forget_cancelled, holds_messages

log = logging.getLogger(__name__)

GREETING_TAG = 0
STEPS = 8
"""Steps of progress, of up to a segment each, before complete messages are looked for and the loop gets its turn."""
CLOSE_SECONDS = 2.0
GRACE_SECONDS = 0.2
"""How long UCX may take to give buffers back once an endpoint is cut; usually it is less than a millisecond."""


class UcxTransport(Transport):
    """Reaches other sidecars by the lanes that UCX finds among those that `kind` allows.

    Raises:
        TransportUnavailable: the binding is not installed or does not load.
    """

    def __init__(self, kind: TransportKind = TransportKind.AUTO, environment: Mapping[str, str] | None = None) -> None:
        self._kind = kind
        self._environment = dict(os.environ if environment is None else environment)
        self._library = UcxLibrary()
        self._context: Any = None
        self._network: tuple[str, ...] = ()
        self._connections: set[UcxConnection] = set()
        self._listeners: set[Listener] = set()

    @property
    def name(self) -> str:
        return f"ucx-{self._kind.value}"

    async def listen(self, host: str, port: int, on_connection: Callable[[Connection], None]) -> Listener:
        listener = await listen_control(host, port, lambda channel: on_connection(self._adopt(channel)))
        self._listeners.add(listener)
        return listener

    async def connect(self, host: str, port: int, timeout: float) -> Connection:
        return self._adopt(await connect_control(host, port, timeout))

    async def close(self) -> None:
        for listener in self._listeners:
            await listener.close()
        self._listeners.clear()
        if self._connections:
            await asyncio.wait([asyncio.ensure_future(each.close(CLOSE_SECONDS)) for each in self._connections])
        self._context = None

    def rebuild(self) -> None:
        """Make a new UCX context for connections to come; those that are open keep theirs."""
        self._context = None

    def make_way(self, peer: str, host: Host | None) -> _DataWay:
        """A data way on a context that knows the network of now: UCX looks for devices only when a context is made.

        host: from which the peer is seen.

        Raises:
            TransportUnavailable: UCX finds no usable device.
        """
        network = network_snapshot()
        if self._context is None or network != self._network:
            self._context, self._network = self._library.context(self._kind, self._environment), network
        return _DataWay(self._library, self._context, peer, host)

    def forget(self, connection: UcxConnection) -> None:
        """Called by a connection that holds nothing any more."""
        self._connections.discard(connection)

    def _adopt(self, channel: ControlChannel) -> UcxConnection:
        connection = UcxConnection(self, channel)
        self._connections.add(connection)
        return connection


class UcxConnection(Connection):
    """One peer: a TCP connection, and a UCX worker with one endpoint once the session asks for it."""

    def __init__(self, transport: UcxTransport, channel: ControlChannel) -> None:
        self._transport = transport
        self._channel = channel
        self._way: _DataWay | None = None
        self._closed = False

    @property
    def peer(self) -> str:
        return self._channel.peer

    def send_control(self, payload: bytes) -> None:
        self._channel.send(payload)

    async def receive_control(self, limit: int) -> bytes:
        return await self._channel.receive(limit)

    def data_address(self) -> bytes:
        if self._closed:
            raise TransportUnavailable(f"the connection to {self.peer} is closed")
        if self._way is None:
            self._way = self._transport.make_way(self.peer, self._channel.host)
        return self._way.address

    async def open_data(self, peer_address: bytes, timeout: float) -> None:
        try:
            self.data_address()
            assert self._way is not None
            await self._way.open(peer_address, timeout)
        except TransportUnavailable as error:
            raise ConnectFailed(str(error)) from error
        except ConnectFailed:
            self._transport.rebuild()
            raise

    def send_data(self, buffer: memoryview, tag: int) -> BufferFuture:
        view = lent_view(buffer, writable=False)
        return self._way.send(view, checked_tag(tag)) if self._way else _refused(self.peer)

    def receive_data(self, buffer: memoryview, tag: int) -> BufferFuture:
        view = lent_view(buffer, writable=True)
        return self._way.receive(view, checked_tag(tag)) if self._way else _refused(self.peer)

    def lanes(self) -> tuple[Lane, ...]:
        return self._way.lanes() if self._way else ()

    async def close(self, timeout: float) -> None:
        self._closed = True
        parts = [asyncio.ensure_future(self._channel.close(timeout))]
        if self._way is not None:
            parts.append(asyncio.ensure_future(self._way.close(timeout)))
        await asyncio.wait(parts)
        if not self.leaked:
            self._transport.forget(self)

    @property
    def leaked(self) -> int:
        return self._way.outstanding if self._way and self._closed else 0


@dataclass(slots=True)
class _Loan:
    """A buffer that UCX has now. `view` keeps its memory alive."""

    future: BufferFuture
    view: memoryview


class _DataWay:
    """One worker, one endpoint, and the buffers that they hold."""

    def __init__(self, library: UcxLibrary, context: Any, peer: str, host: Host | None) -> None:
        self._library = library
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        before = descriptors()
        self._worker = library.worker(context)
        self._ports = GuardedPorts(listeners(since=before))
        self._ports.turn_away(opened(since=before))
        own = self._ports.hosts
        self._same_machine = host is not None and is_ours(host)
        self._ports.admit([*([host] if host else []), *(own if self._same_machine else [])])
        self._endpoint: Any = None
        self._loans: dict[Any, _Loan] = {}
        self._scheduled = False
        self._closing = False
        self._descriptor: int = self._worker.epoll_file_descriptor
        self.address = pack(own, self._worker.address.tobytes())
        self._loop.add_reader(self._descriptor, self._drive)

    @property
    def outstanding(self) -> int:
        return len(self._loans)

    async def open(self, peer_address: bytes, timeout: float) -> None:
        hosts, address = unpack(peer_address, self._peer)
        if self._endpoint is not None or self._closing:
            raise ConnectFailed(f"the data way to {self._peer} is already open or closed")
        self._ports.admit(each for each in hosts if self._same_machine or not each.is_loopback)
        try:
            self._endpoint = self._library.endpoint(self._worker, address)
        except self._library.errors as error:
            raise ConnectFailed(f"UCX has no way to {self._peer}: {error}") from error
        # Both greet, so that both know that bytes arrive, from whom, and which lanes were settled on.
        heard = bytearray(DIGEST_BYTES)
        futures = (
            self._post(self._endpoint.tag_recv, memoryview(heard), GREETING_TAG),
            self._post(self._endpoint.tag_send, memoryview(digest(self.address)), GREETING_TAG),
        )
        _, waiting = await asyncio.wait(futures, timeout=timeout)
        if waiting:
            raise ConnectFailed(f"{self._peer} did not answer on the data way within {timeout:g} s")
        failure = next(filter(None, (future.exception() for future in futures)), None)
        if failure is not None:
            raise ConnectFailed(f"the data way to {self._peer} failed while opening: {failure}") from failure
        if heard != digest(peer_address):
            raise ConnectFailed(f"another worker than that of {self._peer} answered on the data way")

    def send(self, view: memoryview, tag: int) -> BufferFuture:
        return self._post(self._endpoint.tag_send, view, tag) if self._usable else _refused(self._peer)

    def receive(self, view: memoryview, tag: int) -> BufferFuture:
        return self._post(self._endpoint.tag_recv, view, tag) if self._usable else _refused(self._peer)

    def lanes(self) -> tuple[Lane, ...]:
        return endpoint_lanes(self._endpoint.handle) if self._usable else ()

    async def close(self, timeout: float) -> None:
        if not self._closing:
            self._closing = True
            if self._endpoint is not None:
                # Cancels what has not begun and cuts off what has, without asking the peer, which may be stuck.
                self._endpoint.close_blocking(0, 1)
            self._schedule()
        futures = [loan.future for loan in self._loans.values()]
        if futures:
            await asyncio.wait(futures, timeout=min(timeout, GRACE_SECONDS))
        self._end()

    @property
    def _usable(self) -> bool:
        return self._endpoint is not None and not self._closing and bool(self._endpoint.alive)

    def _post(self, operation: Callable[..., Any], view: memoryview, tag: int) -> BufferFuture:
        future = BufferFuture(loop=self._loop)
        try:
            request = operation(self._library.array(view), self._library.tag(tag))
        except self._library.errors as error:
            future.give_back(ConnectionLost(f"{self._peer}: {error}"))
            return future
        self._loans[request] = _Loan(future, view)
        self._schedule()
        return future

    def _schedule(self) -> None:
        """An armed worker does not wake by itself for what this side has posted."""
        if not self._scheduled and self._worker is not None:
            self._scheduled = True
            self._loop.call_soon(self._drive)

    def _drive(self) -> None:
        self._scheduled = False
        worker = self._worker
        if worker is None:
            return
        try:
            steps = 0
            while steps < STEPS and worker.progress_once():
                steps += 1
            if self._endpoint is not None and not self._endpoint.alive:
                worker.progress()  # also cancels the requests of an endpoint that failed
            self._collect(every=steps == 0)
            if self._worker is None or (steps < STEPS and not self._scheduled and worker.arm()):
                return
        except self._library.errors:
            # Never seen; without this the loop would call again at once, for ever.
            log.exception("UCX makes no progress", extra={"peer": self._peer})
            self._loop.remove_reader(self._descriptor)
            return
        if steps == 0 and not self._scheduled:
            # Nothing to do and yet not to be armed: seen over shared memory, while the peer has to move first.
            # Give it the core: turning here instead cost several times the CPU and most of the throughput.
            os.sched_yield()
        self._schedule()

    def _collect(self, every: bool) -> None:
        """Give back the buffers of requests that are complete. every: look behind the first that is not, too.

        Nearly always they are complete in the order in which they were posted.
        """
        complete = []
        for request in self._loans:
            if request.completed:
                complete.append(request)
            elif not every:
                break
        for request in complete:
            loan = self._loans.pop(request)
            loan.future.give_back(self._failure(request, loan.view.nbytes))
        if self._closing and not self._loans:
            self._end()

    def _failure(self, request: Any, size: int) -> TransportError | None:
        try:
            request.check_error()
        except self._library.truncated:
            return TransportError(f"{self._peer} sent more than the {size} bytes that the buffer holds")
        except self._library.errors as error:
            return ConnectionLost(f"{self._peer}: {error}")
        return None

    def _end(self) -> None:
        """Free worker and endpoint, and with them the buffers that are still out."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        self._loop.remove_reader(self._descriptor)
        if self._loans:
            # Seen over shared memory, with a peer that takes nothing: sends in mid-flight stay with UCX after the cut.
            log.warning("buffers taken from UCX by force", extra={"peer": self._peer, "buffers": len(self._loans)})
            destroy_worker(worker, (self._endpoint, *self._loans))
        elif holds_messages(worker):
            destroy_worker(worker, (self._endpoint,))
        elif self._endpoint is not None:
            forget_cancelled(self._endpoint.ucxx_ptr)
        self._endpoint = None
        loans, self._loans = self._loans, {}
        for loan in loans.values():
            loan.future.give_back(ConnectionLost(f"the data way to {self._peer} was closed"))


def _refused(peer: str) -> BufferFuture:
    future = BufferFuture(loop=asyncio.get_running_loop())
    future.give_back(ConnectionLost(f"the data way to {peer} is not open"))
    return future
