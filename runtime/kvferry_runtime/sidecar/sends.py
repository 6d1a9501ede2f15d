"""The transfers in which this side is P: offers matched with RESERVEs, chunks filled and sent in turn."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvferry_runtime.errors import FrameError, ProtocolError, Reason
from kvferry_runtime.ring.messages import Cancel, ChunksReady, Fill, Filled, Offer, SealOffer, Sent
from kvferry_runtime.ring.slots import SlotState
from kvferry_runtime.sidecar.hub import AgentHub
from kvferry_runtime.sidecar.metrics import Metrics
from kvferry_runtime.sidecar.records import Direction, Records, TransferRecord
from kvferry_runtime.sidecar.reservations import Reservation, Reservations
from kvferry_runtime.sidecar.ring_slots import RingSlots
from kvferry_runtime.sidecar.send_session import SendSession
from kvferry_runtime.sidecar.wire_time import WireTime
from kvferry_runtime.wire.data import DataHeader
from kvferry_runtime.wire.effects import AskFill, Effect, Finished, Release, Tell, Transmit, reason_of
from kvferry_runtime.wire.messages import (
    Abort,
    AbortAck,
    AnyMessage,
    Commit,
    Credit,
    Nack,
    Reserve,
    SealLayer,
)
from kvferry_runtime.wire.outgoing import Manifest, Offered, Work
from kvferry_runtime.wire.sender import OutgoingTransfer

MAX_OPEN = 4096

_SHUTTING_DOWN = "this sidecar is shutting down"
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Send:
    machine: OutgoingTransfer
    record: TransferRecord
    started: float
    wire: WireTime = field(default_factory=WireTime)


@dataclass(frozen=True, slots=True)
class _Lease:
    """A slot that a transfer has, for a session."""

    send: _Send
    session: SendSession


class Sends:
    """retries: generations that may follow the first one of each transfer."""

    def __init__(
        self,
        slots: RingSlots,
        hub: AgentHub,
        records: Records,
        metrics: Metrics,
        retries: int,
        clock: Callable[[], float],
    ) -> None:
        self._slots = slots
        self._hub = hub
        self._records = records
        self._metrics = metrics
        self._retries = retries
        self._clock = clock
        self._sends: dict[str, _Send] = {}
        self._reservations = Reservations()
        self._leases: dict[int, _Lease] = {}
        self._sessions: dict[str, SendSession] = {}
        self._turn: OrderedDict[str, _Send] = OrderedDict()
        """Transfers that are bound to a session, in the order in which they get slots."""
        self._pump_due = False
        self._draining = False
        self.on_over: Callable[[], None] = lambda: None

    @property
    def open(self) -> int:
        """Transfers whose end was not reported yet."""
        return sum(not send.record.over for send in self._sends.values())

    @property
    def sessions(self) -> list[SendSession]:
        return list(self._sessions.values())

    # ---- the agent ----

    def offer(self, message: Offer) -> None:
        """Raises ProtocolError: the transfer is open already."""
        if message.transfer_id in self._sends:
            raise ProtocolError(f"transfer {message.transfer_id} was offered twice")
        now = self._clock()
        offered = Offered(
            transfer_id=message.transfer_id,
            tokens=message.tokens,
            estimated_bytes=message.estimated_bytes,
            codec=message.codec,
            layerwise=message.layerwise,
            deadline=now + message.deadline_ms / 1000,
            retries=self._retries,
        )
        machine = OutgoingTransfer(offered)
        record = TransferRecord(
            id=message.transfer_id,
            direction=Direction.SEND,
            tokens=message.tokens,
            started_unix=time.time(),
            state=machine.state.value,
            codec=message.codec,
            layerwise=message.layerwise,
        )
        send = self._sends[message.transfer_id] = _Send(machine, record, now)
        self._records.add(record)
        given_up = self._reservations.take_given_up(message.transfer_id)
        if self._draining:
            self._run(send, machine.cancelled(Reason.DRAINING, _SHUTTING_DOWN, now))
        elif len(self._sends) > MAX_OPEN:
            self._run(send, machine.cancelled(Reason.NO_CAPACITY, f"{MAX_OPEN} transfers are open", now))
        elif given_up is not None:
            self._run(send, machine.cancelled(reason_of(given_up.reason), given_up.message, now))
        elif (waiting := self._reservations.take(message.transfer_id)) is not None:
            self._bind(send, waiting.session, waiting.message)

    def ready(self, message: ChunksReady) -> None:
        send = self._sends.get(message.transfer_id)
        if send is None or not message.chunks:
            return
        first = message.chunks[0].sequence
        if [chunk.sequence for chunk in message.chunks] != list(range(first, first + len(message.chunks))):
            raise ProtocolError(f"chunks of transfer {message.transfer_id} were announced with gaps")
        sizes = [chunk.raw_bytes for chunk in message.chunks]
        self._run(send, send.machine.announced(first, sizes, self._clock()))

    def seal(self, message: SealOffer) -> None:
        send = self._sends.get(message.transfer_id)
        if send is None:
            return
        send.wire.computed(message.compute_finished_ns / 1e9)
        layers = tuple(SealLayer(layer=item.layer, tokens=item.tokens, chunks=item.chunks) for item in message.layers)
        manifest = Manifest(chunks=message.chunks, layers=layers, first_token=message.first_token)
        self._run(send, send.machine.sealed(manifest, self._clock()))

    def filled(self, message: Filled) -> None:
        """Raises ProtocolError: the slot was not lent for this."""
        lease = self._leases.get(message.slot)
        if lease is None or lease.send.record.id != message.transfer_id:
            raise ProtocolError(f"slot {message.slot} was not lent for transfer {message.transfer_id}")
        good = not message.wire_bytes or self._header_fits(message, lease.send.machine.generation_of(message.slot))
        raw_bytes, wire_bytes = (message.raw_bytes, message.wire_bytes) if good else (0, 0)
        self._run(
            lease.send,
            lease.send.machine.filled(
                message.slot, message.sequence, raw_bytes, wire_bytes, message.digest, self._clock()
            ),
        )

    def cancel(self, message: Cancel) -> None:
        send = self._sends.get(message.transfer_id)
        if send is not None:
            self._run(send, send.machine.cancelled(Reason.CANCELLED, message.reason, self._clock()))

    def agent_lost(self, message: str) -> None:
        """The engine's process is gone."""
        now = self._clock()
        for send in list(self._sends.values()):
            self._run(send, send.machine.agent_lost(message, now))
        self._reservations.deny_all(Reason.ENGINE_LOST, message)

    # ---- the sessions ----

    def admit(self, session: SendSession) -> None:
        """A session that passed the handshake. It replaces older ones of the same pod."""
        for other in self.sessions:
            if other.agreed.group == session.agreed.group:
                other.fail(Reason.PEER_LOST, f"{other.peer}: the same pod has opened a new session")
        session.own(self._said, self._sent, self._closed)
        self._sessions[session.name] = session
        session.start()

    def _said(self, session: SendSession, message: AnyMessage) -> None:
        now = self._clock()
        match message:
            case Credit():
                session.granted.grant(message.limit)
                for ack in message.acks:
                    if send := self._bound(session, ack.transfer_id):
                        self._run(send, send.machine.acknowledged(ack.generation, ack.sequence))
                for number in message.unread:
                    for send in self._over(session):
                        self._run(send, send.machine.unread(number, now))
            case Reserve():
                self._reserve(session, message)
            case Commit():
                if send := self._bound(session, message.transfer_id):
                    self._run(send, send.machine.committed(message, now))
            case Nack():
                if send := self._bound(session, message.transfer_id):
                    self._run(send, send.machine.nacked(message, now))
            case Abort():
                self._abort(session, message)
            case AbortAck():
                pass
            case _:
                session.fail(Reason.PEER_LOST, f"{session.peer}: {type(message).__name__} may not come from decode")
        self.pump_soon()

    def _sent(self, slot: int) -> None:
        lease = self._leases[slot]
        lease.send.wire.ended(self._clock())
        self._run(lease.send, lease.send.machine.completed(slot))

    def _closed(self, session: SendSession, reason: Reason, message: str) -> None:
        del self._sessions[session.name]
        _log.info("session closed: %s", message, extra={"session": session.name})
        if reason is Reason.PEER_LOST and not session.draining:
            self._metrics.sessions_lost.labels(Direction.SEND.value).inc()
        now = self._clock()
        for send in self._over(session):
            self._run(send, send.machine.peer_lost(reason, message, now))
        self._reservations.forget(session)

    def _reserve(self, session: SendSession, message: Reserve) -> None:
        reservation = Reservation(session, message, self._clock() + message.deadline_ms / 1000)
        send = self._sends.get(message.transfer_id)
        if self._draining:
            reservation.deny(Reason.DRAINING, _SHUTTING_DOWN)
        elif send is not None:
            self._bind(send, session, message)
        elif self._hub.attach is None:
            reservation.deny(Reason.ENGINE_LOST, "no engine is attached")
        elif (record := self._records.get(message.transfer_id, Direction.SEND)) is not None:
            reservation.deny(reason_of(record.reason or Reason.DENIED), f"over: {record.message or record.state}")
        else:
            self._reservations.wait(reservation)

    def _abort(self, session: SendSession, message: Abort) -> None:
        session.tell(AbortAck(transfer_id=message.transfer_id, generation=message.generation))
        send = self._bound(session, message.transfer_id)
        if send is not None:
            self._run(send, send.machine.aborted(message, self._clock()))
        else:
            self._reservations.abort(session, message)

    def _bind(self, send: _Send, session: SendSession, message: Reserve) -> None:
        machine = send.machine
        effects = machine.reserve(session.name, message, session.granted, session.agreed.layerwise)
        if machine.active and machine.peer == session.name and machine.generation == message.generation:
            if message.generation > 0:
                self._metrics.retried.labels(Direction.SEND.value).inc()
            send.record.peer = session.agreed.group
            send.record.lanes = session.lanes
            self._turn[send.record.id] = send
        self._run(send, effects)

    def _over(self, session: SendSession) -> list[_Send]:
        """The transfers that go over this session."""
        return [send for send in self._turn.values() if send.machine.peer == session.name]

    def _bound(self, session: SendSession, transfer_id: str) -> _Send | None:
        """The transfer, if it goes over this session."""
        send = self._sends.get(transfer_id)
        return send if send is not None and send.machine.peer == session.name else None

    # ---- the clock ----

    def tick(self, now: float) -> None:
        for send in list(self._sends.values()):
            self._run(send, send.machine.tick(now))
        self._reservations.expire(now)

    def drain(self) -> None:
        """Take nothing new; what no peer has asked for yet ends now."""
        self._draining = True
        for send in list(self._sends.values()):
            if not send.machine.active:
                self._run(send, send.machine.cancelled(Reason.DRAINING, _SHUTTING_DOWN, self._clock()))
        self._reservations.deny_all(Reason.DRAINING, _SHUTTING_DOWN)

    def abandon(self, reason: Reason, message: str) -> None:
        """End everything that is still open."""
        for send in list(self._sends.values()):
            self._run(send, send.machine.cancelled(reason, message, self._clock()))

    # ---- slots in turn ----

    def pump_soon(self) -> None:
        """Something may go on: a slot, a credit or a chunk is there."""
        if not self._pump_due and self._turn:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Give each transfer one slot in turn, until none can use another one."""
        self._pump_due = False
        moved = True
        while moved:
            moved = False
            for transfer_id in list(self._turn):
                send = self._turn.get(transfer_id)
                if send is not None and self._step(send):
                    self._turn.move_to_end(transfer_id)
                    moved = True

    def _step(self, send: _Send) -> bool:
        work = send.machine.work()
        session = self._sessions.get(send.machine.peer)
        if work is None or session is None or not session.open:
            return False
        if work is Work.RESEND:
            self._metrics.resent.labels(Direction.SEND.value).inc()
            self._run(send, send.machine.resend())
            return True
        if session.held >= max(1, self._slots.total // (len(self._sessions) + 1)):
            return False  # a peer that takes nothing must not hold the slots of the others
        slot = self._slots.take(SlotState.LENT)
        if slot is None:
            return False
        session.held += 1
        self._leases[slot] = _Lease(send, session)
        self._run(send, send.machine.fill(slot))
        return True

    # ---- effects ----

    def _run(self, send: _Send, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case AskFill():
                    self._hub.send(
                        Fill(
                            transfer_id=send.record.id,
                            slot=effect.slot,
                            sequence=effect.sequence,
                            generation=effect.generation,
                        )
                    )
                case Tell():
                    if session := self._sessions.get(effect.peer):
                        session.tell(effect.message)
                case Transmit():
                    self._transmit(send, effect)
                case Release():
                    self._release(effect.slot)
                case Finished():
                    self._finish(send, effect)
        self._update(send)
        self.pump_soon()

    def _transmit(self, send: _Send, effect: Transmit) -> None:
        lease = self._leases[effect.slot]
        if not effect.resent:
            self._slots.move(effect.slot, SlotState.IN_FLIGHT)
        send.wire.started(self._clock())
        lease.session.transmit(effect.slot, effect.number, effect.wire_bytes)

    def _release(self, slot: int) -> None:
        lease = self._leases.pop(slot)
        lease.session.held -= 1
        self._slots.move(slot, SlotState.LOST if lease.session.lost(slot) else SlotState.FREE)

    def _finish(self, send: _Send, outcome: Finished) -> None:
        record, machine = send.record, send.machine
        record.over = True
        record.digest = f"{machine.digest:016x}" if machine.chunks else ""
        record.reason = "" if outcome.reason is None else outcome.reason.value
        record.message = outcome.message
        label = Direction.SEND.value
        if outcome.reason is None:
            now = self._clock()
            self._metrics.committed.labels(label).inc()
            self._metrics.raw_bytes.labels(label).inc(machine.raw_bytes)
            self._metrics.wire_bytes.labels(label).inc(machine.wire_bytes)
            self._metrics.chunks.labels(label).inc(machine.chunks)
            self._metrics.wire_seconds.inc(send.wire.busy(now))
            self._metrics.hidden_seconds.inc(send.wire.hidden(now))
            self._metrics.seconds.labels(label).observe(now - send.started)
        else:
            self._metrics.failed.labels(label, outcome.reason.value).inc()
            _log.warning(
                "transfer failed: %s", outcome.message, extra={"transfer_id": record.id, "reason": record.reason}
            )
        self._hub.send(
            Sent(
                transfer_id=record.id,
                committed=outcome.reason is None,
                reason=record.reason,
                message=outcome.message,
            )
        )
        self.on_over()

    def _update(self, send: _Send) -> None:
        """Keep the record, and forget a transfer that is over with all its slots."""
        record, machine, now = send.record, send.machine, self._clock()
        record.state = machine.state.value
        record.generation = machine.generation
        record.layerwise = machine.layerwise
        record.chunks = machine.chunks
        record.bytes_raw = machine.raw_bytes
        record.bytes_wire = machine.wire_bytes
        record.resent = machine.resent
        if not record.over or not record.wire_seconds:
            record.wire_seconds = send.wire.busy(now)
            record.hidden_seconds = send.wire.hidden(now)
        if not machine.active:
            self._turn.pop(record.id, None)
        if machine.drained and self._sends.get(record.id) is send:
            del self._sends[record.id]

    def _header_fits(self, message: Filled, generation: int) -> bool:
        """Whether the slot's header says what the agent says: a defect must not become another one's data."""
        try:
            header = DataHeader.unpack(self._slots.header(message.slot))
        except FrameError as error:
            _log.error("the agent wrote a bad header: %s", error, extra={"transfer_id": message.transfer_id})
            return False
        theirs = (header.transfer_id, header.generation, header.sequence)
        ours = (message.transfer_id, generation, message.sequence)
        sizes = (header.raw_bytes, header.wire_bytes, header.digest)
        fits = theirs == ours and sizes == (message.raw_bytes, message.wire_bytes, message.digest)
        if not fits or header.wire_bytes > self._slots.chunk_bytes:
            _log.error("the agent's header is %s %s", theirs, sizes, extra={"transfer_id": message.transfer_id})
            return False
        return True
