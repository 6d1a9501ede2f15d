"""A session in which this side is P: it sends chunks, as far as the peer gave credit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from kvferry_runtime.auto.goodput import Goodput
from kvferry_runtime.errors import Reason, TransportError
from kvferry_runtime.ring.slots import SlotState
from kvferry_runtime.sidecar.records import Direction
from kvferry_runtime.sidecar.ring_slots import RingSlots
from kvferry_runtime.sidecar.session import Session
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.transport.buffers import BufferFuture
from kvferry_runtime.wire.credits import SendCredits
from kvferry_runtime.wire.handshake import Agreed
from kvferry_runtime.wire.messages import AnyMessage

OnSent = Callable[[int], None]


class SendSession(Session):
    """held: slots that transfers have for this session now, kept by the owner."""

    direction = Direction.SEND

    def __init__(self, connection: Connection, agreed: Agreed, boot_id: bytes, slots: RingSlots) -> None:
        super().__init__(connection, agreed, boot_id)
        self.granted = SendCredits()
        self.goodput = Goodput()
        self.held = 0
        self._slots = slots
        self._in_flight: dict[int, BufferFuture] = {}
        self._lost: set[int] = set()
        self._on_sent: OnSent = lambda _slot: None

    def own(
        self,
        on_message: Callable[[SendSession, AnyMessage], None],
        on_sent: OnSent,
        on_closed: Callable[[SendSession, Reason, str], None],
    ) -> None:
        """Who is told. on_sent: the network no longer reads this slot, or never will give it back (see `lost`)."""
        self._on_message, self._on_sent, self._on_closed = on_message, on_sent, on_closed

    @property
    def credits(self) -> int:
        return self.granted.available

    @property
    def sent(self) -> int:
        return self.granted.used

    @property
    def bytes_per_second(self) -> float | None:
        """What the network takes of this session, None if nothing was measured."""
        return self.goodput.bytes_per_second(asyncio.get_running_loop().time())

    def lost(self, slot: int) -> bool:
        """The network still has this slot of a session that is over."""
        return slot in self._lost

    def transmit(self, slot: int, number: int, payload_bytes: int) -> None:
        """Send header and payload. `on_sent` follows in every case."""
        loop = asyncio.get_running_loop()
        if not self.open:
            loop.call_soon(self._on_sent, slot)
            return
        tag = self.agreed.session << 32 | number
        try:
            future = self._connection.send_data(self._slots.message(slot, payload_bytes), tag)
        except TransportError as error:
            self.fail(Reason.PEER_LOST, f"{self.peer}: {error}")
            loop.call_soon(self._on_sent, slot)
            return
        self._in_flight[slot] = future
        self.goodput.started(payload_bytes, loop.time())
        future.when_back(partial(self._done, slot, payload_bytes))

    def _done(self, slot: int, payload_bytes: int, error: TransportError | None) -> None:
        del self._in_flight[slot]
        self.goodput.ended(payload_bytes, asyncio.get_running_loop().time(), carried=error is None)
        if slot in self._lost:
            self._lost.remove(slot)
            self._slots.move(slot, SlotState.FREE)
            return
        self._on_sent(slot)
        if error is not None:
            self.fail(Reason.PEER_LOST, f"{self.peer}: {error}")

    def _account(self) -> int:
        self._lost = {slot for slot, future in self._in_flight.items() if not future.done()}
        for slot in self._lost:
            self._on_sent(slot)
        return len(self._lost)
