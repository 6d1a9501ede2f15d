"""The ring's control socket: Unix SEQPACKET, messages that come together share a packet.

The sidecar's side lives in its event loop and serves one agent at a time. The agent's side never blocks either: the
agent polls its descriptor together with its own wake-ups. Both queue what the other side does not read yet, up to a
bound; beyond it the other side counts as gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from kvferry_contract import paths
from kvferry_runtime.errors import RingError, RingUnavailable, SettingsError
from kvferry_runtime.ring import packets
from kvferry_runtime.ring.messages import MAX_BATCH, MAX_PACKET_BYTES, FromAgent, FromSidecar, Refused, RingMessage

MAX_QUEUED = 8192
"""Messages that may wait for the other side; far more than all slots and transfers of a busy pod cause."""

ACCEPT_RETRY_SECONDS = 0.5

_BACKLOG = 8
_SOCKET_BUFFER = 1 << 20
_log = logging.getLogger(__name__)


class PacketQueue:
    """Outgoing messages of one non-blocking socket, sent in order as the other side takes them."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._waiting: deque[bytes] = deque()
        self._packet = b""

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._packet

    def put(self, message: bytes) -> None:
        """Keep an encoded message for the next packet, which goes out now if it is full.

        Raises:
            RingUnavailable: the other side went away, or has left `MAX_QUEUED` messages unread.
        """
        if len(self._waiting) >= MAX_QUEUED:
            raise RingUnavailable(f"the other side of the ring has left {MAX_QUEUED} messages unread")
        self._waiting.append(message)
        if len(self._waiting) >= MAX_BATCH:
            self.flush()

    def flush(self) -> None:
        """Send now what the socket takes. Raises RingUnavailable if the other side went away."""
        try:
            while self._packet or self._waiting:
                if not self._packet:
                    self._packet = self._next()
                self._socket.send(self._packet)
                self._packet = b""
        except BlockingIOError:
            return
        except OSError as error:
            raise RingUnavailable(f"the other side of the ring went away: {error.strerror}") from error

    def _next(self) -> bytes:
        """A packet of as many messages as fit."""
        waiting, room = self._waiting, packets.MAX_MESSAGE_BYTES
        items: list[bytes] = []
        while waiting and len(items) < MAX_BATCH and len(waiting[0]) <= room:
            room -= len(waiting[0])
            items.append(waiting.popleft())
        return packets.packet_of(items)


class AgentChannel:
    """The sidecar's end of the connection to its agent. Only to be used in the event loop that accepted it."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._queue = PacketQueue(sock)
        self._closed = False
        self._flush_due = False
        self._writing = False
        self._on_messages: Callable[[list[FromAgent]], None] = lambda _messages: None
        self._on_closed: Callable[[RingError], None] = lambda _error: None

    @property
    def closed(self) -> bool:
        return self._closed

    def start(self, on_messages: Callable[[list[FromAgent]], None], on_closed: Callable[[RingError], None]) -> None:
        """Begin to read. on_messages: gets what came in one packet. on_closed: called once, when the agent went away
        (`RingUnavailable`) or sent what is no message (`RingError`), but not after `close`."""
        self._on_messages, self._on_closed = on_messages, on_closed
        if not self._closed:
            self._loop.add_reader(self._socket, self._on_readable)

    def send(self, message: FromSidecar) -> None:
        """Queue a message, which goes out together with all others of this turn of the event loop; never blocks.

        Raises:
            RingUnavailable: the channel is closed, or the agent does not read; it is then closed.
            RingError: the message is too large.
        """
        item = packets.encode_message(message)
        if self._closed:
            raise RingUnavailable("the agent is gone")
        try:
            self._queue.put(item)
        except RingUnavailable as error:
            self._lose(error)
            raise
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what is queued now, not only when this turn of the loop ends. An agent that is gone is reported soon."""
        self._flush_due = False
        if self._closed:
            return
        try:
            self._queue.flush()
        except RingUnavailable as error:
            self._lose(error)
            return
        if self._writing == self._queue.empty:
            self._writing = not self._writing
            if self._writing:
                self._loop.add_writer(self._socket, self.flush)
            else:
                self._loop.remove_writer(self._socket)

    def close(self) -> None:
        """Send what the agent takes at once, and close. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_writer(self._socket)
        self._loop.remove_reader(self._socket)
        with contextlib.suppress(RingUnavailable):
            self._queue.flush()
        self._socket.close()

    def _on_readable(self) -> None:
        """One packet in each turn of the loop, so that the rest of it gets its turn however much the agent says."""
        try:
            packet = self._socket.recv(MAX_PACKET_BYTES + 1)
            if not packet:
                raise RingUnavailable("the agent went away")
            messages = packets.decode_from_agent(packet)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(RingUnavailable(f"the agent went away: {error.strerror}"))
        except RingError as error:
            self._lose(error)
        else:
            self._on_messages(messages)

    def _lose(self, error: RingError) -> None:
        self.close()
        self._loop.call_soon(self._on_closed, error)


class AgentServer:
    """Listens in the ring's folder. One agent at a time; another one is refused with a message."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._current: AgentChannel | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, directory: Path, on_agent: Callable[[AgentChannel], None]) -> None:
        """Listen on `directory/agent.sock`; `on_agent` is called for each accepted agent, before its first message.

        Call it after the ring was made: that keeps other sidecars out, so a socket found here has no owner.

        Raises:
            SettingsError: the socket cannot be made there.
        """
        path = directory / paths.RING_SOCKET
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            path.unlink(missing_ok=True)
            with _short_path(directory) as short:
                listener.bind(short)
            path.chmod(0o660)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise SettingsError(f"cannot listen on {path}: {error.strerror or error}") from error
        self._listener, self._path = listener, path
        self._accepting = asyncio.create_task(self._accept(listener, on_agent), name="ring-accept")

    async def close(self) -> None:
        """Close the agent's channel and the socket. Idempotent."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._accepting = None
        if self._current is not None:
            self._current.close()
            self._current = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    async def _accept(self, listener: socket.socket, on_agent: Callable[[AgentChannel], None]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:
                # No descriptor free, or the agent has already gone: the next one must still find us listening.
                _log.error("cannot accept an agent: %s", error.strerror)
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            _configure(sock)
            if self._current is not None and not self._current.closed:
                _log.warning("refused a second agent")
                with sock, contextlib.suppress(OSError):
                    message = "another engine is attached to this sidecar; only one can be"
                    sock.send(packets.encode(Refused(message=message)))
                continue
            self._current = AgentChannel(sock)
            on_agent(self._current)


class SidecarSocket:
    """The agent's end: non-blocking, to be polled. Only to be used by one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._queue = PacketQueue(sock)

    @classmethod
    def connect(cls, directory: Path) -> SidecarSocket:
        """Connect to `directory/agent.sock`; returns or fails at once.

        Raises:
            RingUnavailable: nobody listens there (yet).
        """
        path = directory / paths.RING_SOCKET
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        _configure(sock)
        try:
            with _short_path(directory) as short:
                sock.connect(short)
        except OSError as error:
            sock.close()
            raise RingUnavailable(f"no sidecar at {path}: {error.strerror or error}") from error
        return cls(sock)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Packets wait: poll for writability too, then call `flush`."""
        return not self._queue.empty

    def send(self, message: RingMessage, more: bool = False) -> None:
        """Queue a message; never blocks. more: others follow soon, `flush` sends them together.

        Raises:
            RingUnavailable: the sidecar went away or does not read.
            RingError: the message is too large.
        """
        self._queue.put(packets.encode_message(message))
        if not more:
            self._queue.flush()

    def flush(self) -> None:
        """Raises RingUnavailable if the sidecar went away."""
        self._queue.flush()

    def receive(self) -> list[FromSidecar]:
        """The messages of one packet, none if there is none now.

        Raises:
            RingUnavailable: the sidecar went away.
            RingError: it sent what is no message.
        """
        try:
            packet = self._socket.recv(MAX_PACKET_BYTES + 1)
        except BlockingIOError:
            return []
        except OSError as error:
            raise RingUnavailable(f"the sidecar went away: {error.strerror}") from error
        if not packet:
            raise RingUnavailable("the sidecar went away")
        return packets.decode_from_sidecar(packet)

    def close(self) -> None:
        """Send what the sidecar takes at once, and close. Idempotent."""
        if self._socket.fileno() >= 0:
            with contextlib.suppress(RingUnavailable):
                self._queue.flush()
        self._socket.close()


@contextlib.contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """The socket's path through a descriptor of its folder: an address has room for 107 bytes only."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{paths.RING_SOCKET}"
    finally:
        os.close(descriptor)


def _configure(sock: socket.socket) -> None:
    sock.setblocking(False)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)
