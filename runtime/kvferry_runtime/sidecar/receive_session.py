"""A session in which this side is D: a receive is posted for each credit that the peer has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from kvferry_runtime.errors import Reason, TransportError
from kvferry_runtime.ring.slots import SlotState
from kvferry_runtime.sidecar.records import Direction
from kvferry_runtime.sidecar.ring_slots import RingSlots
from kvferry_runtime.sidecar.session import Session
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.transport.buffers import BufferFuture
from kvferry_runtime.wire.credits import ReceiveCredits
from kvferry_runtime.wire.handshake import Agreed
from kvferry_runtime.wire.liveness import DataFlow
from kvferry_runtime.wire.messages import Ack, AnyMessage, Credit, Ping

MAX_ACKS = 256
"""In one CREDIT, and as many numbers of unread messages."""

OnArrival = Callable[["ReceiveSession", int, int], None]


class ReceiveSession(Session):
    """address: `host:port` that was dialled. used: transfers that want it, kept by the owner."""

    direction = Direction.RECEIVE

    def __init__(self, connection: Connection, agreed: Agreed, boot_id: bytes, slots: RingSlots, address: str) -> None:
        super().__init__(connection, agreed, boot_id)
        self.address = address
        self.used = 0
        self.idle_since = asyncio.get_running_loop().time()
        self._slots = slots
        self._credits = ReceiveCredits()
        self._flow = DataFlow()
        self._posted: dict[int, BufferFuture] = {}
        self._acks: list[Ack] = []
        self._unread: list[int] = []
        self._credit_due = False
        self._on_arrival: OnArrival = lambda _session, _slot, _number: None

    def own(
        self,
        on_message: Callable[[ReceiveSession, AnyMessage], None],
        on_arrival: OnArrival,
        on_closed: Callable[[ReceiveSession, Reason, str], None],
    ) -> None:
        """Who is told. on_arrival gets slot and credit number; the slot, counted as posted, is to be lent or posted."""
        self._on_message, self._on_arrival, self._on_closed = on_message, on_arrival, on_closed

    @property
    def credits(self) -> int:
        return len(self._posted)

    @property
    def sent(self) -> int:
        return 0

    @property
    def exhausted(self) -> bool:
        """No more numbers: the session must be replaced by another one."""
        return self._credits.exhausted

    def begin(self, slots: Sequence[int]) -> None:
        """Post the first receives, in slots that are already counted as posted, and start to read."""
        for slot in slots:
            self.post(slot)
        self.start()

    def post(self, slot: int) -> None:
        """Post a receive in this slot, which is counted as posted; the peer gets a credit for it."""
        if not self.open or self.exhausted:
            self._slots.move(slot, SlotState.FREE)
            return
        number = self._credits.post()
        tag = self.agreed.session << 32 | number
        try:
            future = self._connection.receive_data(self._slots.message(slot, self._slots.chunk_bytes), tag)
        except TransportError as error:
            self._slots.move(slot, SlotState.FREE)
            self.fail(Reason.PEER_LOST, f"{self.peer}: {error}")
            return
        self._posted[slot] = future
        future.when_back(partial(self._done, slot, number))
        self._flush_soon()

    def acknowledge(self, ack: Ack) -> None:
        """Say with the next CREDIT that a chunk is in place."""
        self._acks.append(ack)
        self._flush_soon()

    def reject(self, number: int) -> None:
        """Say with the next CREDIT that the message with this number could not be read."""
        self._unread.append(number)
        self._flush_soon()

    def tell(self, message: AnyMessage) -> None:
        """Acknowledgements that are due go first."""
        self._flush()
        super().tell(message)

    def tick(self, engine_age_ms: int) -> None:
        """Also see whether data that the peer has sent arrives."""
        self._flow.tick()
        if self._flow.stalled:
            self.fail(Reason.PEER_LOST, f"{self.peer}: {self._flow.missing} chunks were sent and do not arrive")
        super().tick(engine_age_ms)

    def _receive(self, message: AnyMessage) -> None:
        if isinstance(message, Ping):
            self._flow.sent(message.sent)
        super()._receive(message)

    def _flush_soon(self) -> None:
        if not self._credit_due:
            self._credit_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if not self._credit_due:
            return
        self._credit_due = False
        acks, self._acks = self._acks, []
        unread, self._unread = self._unread, []
        for start in range(0, max(1, len(acks), len(unread)), MAX_ACKS):
            part = slice(start, start + MAX_ACKS)
            super().tell(Credit(limit=self._credits.limit, acks=acks[part], unread=unread[part]))

    def _done(self, slot: int, number: int, error: TransportError | None) -> None:
        del self._posted[slot]
        if error is not None or not self.open:
            self._slots.move(slot, SlotState.FREE)
            if error is not None:
                self.fail(Reason.PEER_LOST, f"{self.peer}: {error}")
            return
        self._flow.arrived()
        self._on_arrival(self, slot, number)

    def _account(self) -> int:
        lost = [slot for slot, future in self._posted.items() if not future.done()]
        for slot in lost:
            self._slots.move(slot, SlotState.LOST)
        return len(lost)
