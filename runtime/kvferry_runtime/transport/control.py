"""The control way on TCP: small ordered frames, a bounded send queue, loss noticed as soon as the kernel knows it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from kvferry_runtime.errors import ConnectFailed, ConnectionLost, FrameError, TransportUnavailable
from kvferry_runtime.transport.base import Listener
from kvferry_runtime.transport.hosts import Host, host_of
from kvferry_runtime.transport.listening import listen
from kvferry_runtime.wire.frames import FrameBuffer, encode_frame

log = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 4 << 20
"""Sent but not yet taken by the kernel; a peer that lets more pile up does not read."""
MAX_READ_AHEAD_BYTES = 64 << 10
"""Received but not asked for; then the kernel's window closes."""
LINGER_SECONDS = 0.5
"""How long `close` waits for the peer to take the last frames and close its side."""


class ControlChannel(asyncio.Protocol):
    """One TCP connection that carries control payloads. Made by `connect_control` and `listen_control`."""

    def __init__(self, on_made: Callable[[ControlChannel], None] | None = None) -> None:
        self._on_made = on_made
        self._transport: asyncio.Transport | None = None
        self._peer = "?"
        self._host: Host | None = None
        self._received = FrameBuffer()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: ConnectionLost | FrameError | None = None
        self._closing = False
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._gone = asyncio.get_running_loop().create_future()

    @property
    def peer(self) -> str:
        """Address and port of the peer."""
        return self._peer

    @property
    def host(self) -> Host | None:
        """From which the peer is seen; None before the connection is made."""
        return self._host

    @property
    def open(self) -> bool:
        """Whether anything can still be sent."""
        return self._failure is None and not self._closing

    def send(self, payload: bytes) -> None:
        """Queue one payload, which goes out together with all others of this turn of the event loop.

        Raises:
            ConnectionLost: closed, or the peer has left too much unread (then the connection is cut).
            FrameError: larger than a control payload may be.
        """
        frame = encode_frame(payload)
        if self._transport is None or not self.open:
            raise self._failure or ConnectionLost(f"connection to {self._peer} is closed")
        queued = self._transport.get_write_buffer_size() + self._unsent_bytes
        if queued + len(frame) > MAX_QUEUED_BYTES:
            self._lose(ConnectionLost(f"{self._peer} does not read: {queued} bytes wait, {MAX_QUEUED_BYTES} may"))
            self._transport.abort()
            raise self._failure or ConnectionLost(self._peer)
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)

    async def receive(self, limit: int) -> bytes:
        """The next payload. What arrived before a loss is still handed out. Safe to cancel; one caller at a time.

        Raises:
            ConnectionLost: closed by either side, or reset.
            FrameError: no frame, or larger than `limit` bytes; the connection is of no use afterwards.
        """
        while True:
            if self._closing:
                raise ConnectionLost(f"connection to {self._peer} is closed")
            payload = self._take(limit)
            if payload is not None:
                return payload
            if self._failure is not None:
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            if self._transport is not None:
                self._transport.resume_reading()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def close(self, timeout: float) -> None:
        """Send what is queued, then close; cut off after `timeout` seconds. Idempotent."""
        if not self._closing:
            self._flush()
            self._closing = True
            self._wake()
            self._received.clear()
            if self._transport is not None and self._failure is None:
                # End our side first and go on reading: closing a socket with unread bytes in it would reset it, and a
                # reset takes our last frames away from the peer.
                self._transport.resume_reading()
                with contextlib.suppress(OSError):  # the peer has reset it, which we would hear of in a moment
                    self._transport.write_eof()
        if not self._gone.done():
            await asyncio.wait((self._gone,), timeout=min(timeout, LINGER_SECONDS))
        if self._transport is not None:
            self._transport.abort()
            await asyncio.wait((self._gone,))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        address = transport.get_extra_info("peername")
        self._peer = f"{address[0]}:{address[1]}" if address else "?"
        self._host = host_of(address[0]) if address else None
        stream: socket.socket = transport.get_extra_info("socket")
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._on_made is None:
            return
        try:
            self._on_made(self)
        except Exception:
            log.exception("cannot take the connection", extra={"peer": self._peer})
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._closing or isinstance(self._failure, FrameError):
            return
        self._received.feed(data)
        self._wake()
        if self._transport is not None and self._received.buffered > max(MAX_READ_AHEAD_BYTES, self._received.awaited):
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._lose(ConnectionLost(f"{self._peer} closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(ConnectionLost(f"connection to {self._peer} was lost: {exc or 'closed'}"))
        if not self._gone.done():
            self._gone.set_result(None)

    def _flush(self) -> None:
        frames, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if frames and self._transport is not None and self.open:
            self._transport.write(b"".join(frames))

    def _take(self, limit: int) -> bytes | None:
        """One payload out of what was received, if it is all there."""
        try:
            return self._received.take(limit)
        except FrameError as error:
            self._failure = error
            raise

    def _lose(self, error: ConnectionLost) -> None:
        if self._failure is None:
            self._failure = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ControlListener(Listener):
    """A listening TCP port. Connections that it took live on after it is closed."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        host, port = server.sockets[0].getsockname()[:2]
        self._address = (str(host), int(port))

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    async def close(self) -> None:
        self._server.close()


async def listen_control(host: str, port: int, on_channel: Callable[[ControlChannel], None]) -> ControlListener:
    """Take connections on this address.

    Raises:
        TransportUnavailable: the address is in use or not ours.
    """
    try:
        server = await listen(lambda: ControlChannel(on_channel), host, port)
    except OSError as error:
        raise TransportUnavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address or stop who holds it"
        ) from error
    return ControlListener(server)


async def connect_control(host: str, port: int, timeout: float) -> ControlChannel:
    """Dial this address.

    Raises:
        ConnectFailed: refused, unreachable, or no answer within `timeout` seconds.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            _, channel = await loop.create_connection(ControlChannel, host, port)
    except TimeoutError as error:
        raise ConnectFailed(f"no answer from {host}:{port} within {timeout:g} s") from error
    except OSError as error:
        raise ConnectFailed(f"cannot connect to {host}:{port}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise ConnectFailed(f"cannot connect to {host}:{port}: not a host name: {error}") from error
    return channel
