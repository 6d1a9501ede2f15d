"""One session with one peer, after the handshake: control messages, PINGs, and the end of it."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from kvferry_runtime.errors import FrameError, Reason, TransportError
from kvferry_runtime.sidecar import lanes
from kvferry_runtime.sidecar.records import Direction
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.wire.effects import reason_of
from kvferry_runtime.wire.frames import MAX_CONTROL_BYTES
from kvferry_runtime.wire.handshake import Agreed
from kvferry_runtime.wire.liveness import Liveness
from kvferry_runtime.wire.messages import AnyMessage, GoAway, Ping, Reject, decode, encode

CLOSE_SECONDS = 2.0
"""How long a closing connection may take to give its buffers back; what it then still has is lost."""

_log = logging.getLogger(__name__)


class Session(ABC):
    """The owner hears of messages by `on_message`, and once by `on_closed`, never from within a call of its own.

    name: unique among the sessions of this sidecar.
    """

    direction: Direction

    def __init__(self, connection: Connection, agreed: Agreed, boot_id: bytes) -> None:
        self.agreed = agreed
        self.name = f"{agreed.group}#{agreed.session}"
        self.lanes = lanes.describe(connection.lanes())
        self.draining = False
        """The peer takes no new transfers."""
        self._connection = connection
        self._boot_id = boot_id
        self._liveness = Liveness(agreed.boot_id)
        self._heard_at = asyncio.get_running_loop().time()
        self._reader: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._failed = False
        self._on_message: Callable[[Any, AnyMessage], None] = lambda _session, _message: None
        self._on_closed: Callable[[Any, Reason, str], None] = lambda _session, _reason, _message: None

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def open(self) -> bool:
        return not self._failed

    @property
    def ping_age_ms(self) -> int:
        """Since the peer was last heard."""
        return int((asyncio.get_running_loop().time() - self._heard_at) * 1000)

    @property
    @abstractmethod
    def credits(self) -> int:
        """Messages that could be sent (received) now."""

    @property
    @abstractmethod
    def sent(self) -> int:
        """Data messages that went out so far."""

    def start(self) -> None:
        """Begin to read."""
        self._reader = asyncio.create_task(self._read(), name=f"session {self.name}")

    def tell(self, message: AnyMessage) -> None:
        """Send a control message. A peer that cannot be told is lost."""
        if self._failed:
            return
        try:
            self._connection.send_control(encode(message))
        except TransportError as error:
            self.fail(Reason.PEER_LOST, f"{self.peer}: {error}")

    def tick(self, engine_age_ms: int) -> None:
        """Once a tick: say PING, and see whether the peer did."""
        if self._failed:
            return
        number = self._liveness.tick()
        if self._liveness.dead:
            self.fail(Reason.PEER_LOST, f"{self.peer} has not answered for {self.ping_age_ms} ms")
            return
        self.tell(Ping(boot_id=self._boot_id, sequence=number, engine_age_ms=engine_age_ms, sent=self.sent))

    def leave(self, reason: Reason, message: str) -> None:
        """End the session in peace: the peer is told first."""
        self.tell(GoAway(deadline_ms=0))
        self.fail(reason, message)

    def fail(self, reason: Reason, message: str) -> None:
        """End the session; the owner is told soon. Idempotent."""
        if self._failed:
            return
        self._failed = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._on_closed, self, reason, message)
        self._closing = loop.create_task(self._close(), name=f"close {self.name}")

    @property
    def finished(self) -> bool:
        """Closed, with every buffer accounted for."""
        return self._closing is not None and self._closing.done()

    async def closed(self) -> None:
        """Until the connection is closed and every buffer is accounted for."""
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await self._connection.close(CLOSE_SECONDS)
        leaked = self._account()
        if leaked:
            _log.error("the network keeps %d slots of a closed session", leaked, extra={"session": self.name})

    @abstractmethod
    def _account(self) -> int:
        """Take stock after the connection was closed: how many slots it has not given back."""

    async def _read(self) -> None:
        try:
            while True:
                message = decode(await self._connection.receive_control(MAX_CONTROL_BYTES))
                self._heard_at = asyncio.get_running_loop().time()
                self._liveness.heard()
                self._receive(message)
        except FrameError as error:
            self.fail(Reason.PEER_LOST, f"{self.peer} does not speak the protocol: {error}")
        except TransportError as error:
            self.fail(Reason.PEER_LOST, f"{self.peer}: {error}")
        except Exception as error:
            _log.exception("defect while reading from a peer", extra={"session": self.name})
            self.fail(Reason.INTERNAL, f"defect in the sidecar: {error!r}")

    def _receive(self, message: AnyMessage) -> None:
        match message:
            case Ping():
                self._liveness.ping(message.boot_id)
            case GoAway():
                _log.info("peer is draining", extra={"session": self.name})
                self.draining = True
            case Reject():
                self.fail(reason_of(message.reason), message.message)
            case _:
                self._on_message(self, message)
