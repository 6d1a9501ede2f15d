"""What a transport must promise.

A connection has two ways that do not wait for each other: *control*, small ordered frames, and *data*, large tagged
messages from one buffer into another. Data needs `open_data` on both sides, which a session calls only after both
peers proved the shared key.

Ownership: a buffer given to `send_data` or `receive_data` belongs to the transport until the returned future is done
(also after `close`, which therefore waits for them); only then may a slot be reused. The future cannot be cancelled:
cancelling a task that awaits it ends the waiting, not the loan. (So bound a wait with `asyncio.wait` or
`asyncio.timeout`; `asyncio.wait_for` and `asyncio.gather` insist on cancelling.) All calls are made from the event
loop's thread and return at once.

A send that is done says that its buffer may be reused, not that the peer has the bytes, and `close` does not flush
data: let the peer acknowledge on the control way first. Control payloads queued before `close` do go out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from kvferry_runtime.transport.buffers import BufferFuture


@dataclass(frozen=True, slots=True)
class Lane:
    """One way that an endpoint really uses, e.g. transport "tcp" on device "lo", or "rc_mlx5" on "mlx5_0:1"."""

    transport: str
    device: str


class Connection(ABC):
    """One peer."""

    @property
    @abstractmethod
    def peer(self) -> str:
        """Address of the peer, for logs."""

    @abstractmethod
    def send_control(self, payload: bytes) -> None:
        """Queue one control payload (framing is the transport's). Never blocks.

        Raises:
            ConnectionLost: closed, or the bounded queue is full because the peer does not read.
            FrameError: larger than `wire.frames.MAX_CONTROL_BYTES`.
        """

    @abstractmethod
    async def receive_control(self, limit: int) -> bytes:
        """The next control payload of at most `limit` bytes.

        Raises:
            ConnectionLost: the peer closed or went away.
            FrameError: what arrives is no frame, or larger than `limit`; nothing was allocated for it.
        """

    @abstractmethod
    def data_address(self) -> bytes:
        """What the peer needs for `open_data`. The same for the whole life of the connection.

        Raises:
            TransportUnavailable: the data way cannot run here; the message says why.
        """

    @abstractmethod
    async def open_data(self, peer_address: bytes, timeout: float) -> None:
        """Open the data way to the peer. Done when bytes went both ways, so the peer must be opening too: hand over
        `data_address` before waiting here.

        Raises:
            ConnectFailed: the address is unusable or the peer did not answer within `timeout` seconds.
        """

    @abstractmethod
    def send_data(self, buffer: memoryview, tag: int) -> BufferFuture:
        """Send `buffer` to the peer's receive with this tag (1 to 2⁶⁴-1, meaningful within this connection only).

        The future fails with `TransportError`.

        Raises:
            LayoutError: the buffer is not C-contiguous; nothing was sent.
        """

    @abstractmethod
    def receive_data(self, buffer: memoryview, tag: int) -> BufferFuture:
        """Post a receive. A shorter message completes, a longer one fails and writes nothing past the buffer.

        The future fails with `TransportError`.

        Raises:
            LayoutError: the buffer is not C-contiguous, or read-only.
        """

    @abstractmethod
    def lanes(self) -> tuple[Lane, ...]:
        """Lanes of the data endpoint, asked of the endpoint itself; empty before `open_data`."""

    @abstractmethod
    async def close(self, timeout: float) -> None:
        """Close both ways; done when every buffer is back (each future done), at the latest after `timeout` seconds.

        Idempotent. Pending `receive_control` raises `ConnectionLost`. Futures still pending at the time-out keep their
        buffers; `leaked` tells how many.
        """

    @property
    @abstractmethod
    def leaked(self) -> int:
        """Buffers that had not come back when `close` returned and are still out; their slots must not be reused."""


class Listener(ABC):
    @property
    @abstractmethod
    def address(self) -> tuple[str, int]:
        """Host and port really bound."""

    @abstractmethod
    async def close(self) -> None:
        """Take no more connections. Idempotent."""


class Transport(ABC):
    """A way to reach other sidecars."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    async def listen(self, host: str, port: int, on_connection: Callable[[Connection], None]) -> Listener:
        """Accept control connections; port 0 takes a free one.

        Raises:
            TransportUnavailable: the address is in use or not ours; the message names it.
        """

    @abstractmethod
    async def connect(self, host: str, port: int, timeout: float) -> Connection:
        """Open a control connection.

        Raises:
            ConnectFailed: names the address and the reason.
        """

    @abstractmethod
    async def close(self) -> None:
        """Free everything. Idempotent; bounded to 2 seconds."""
