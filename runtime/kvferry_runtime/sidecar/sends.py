"""The transfers in which this side is P: offers matched with RESERVEs, chunks filled and sent in turn."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvferry_contract.config import TransferConfig
from kvferry_runtime.errors import ProtocolError, Reason
from kvferry_runtime.layout import layers_text
from kvferry_runtime.ring.messages import Cancel, Chosen, ChunksReady, Filled, Offer, SealOffer, Sent
from kvferry_runtime.ring.slots import SlotState
from kvferry_runtime.sidecar.chunk_events import ChunkEvents
from kvferry_runtime.sidecar.hub import AgentHub
from kvferry_runtime.sidecar.metrics import Metrics
from kvferry_runtime.sidecar.records import Direction, Records
from kvferry_runtime.sidecar.reservations import Reservation, Reservations
from kvferry_runtime.sidecar.ring_slots import RingSlots
from kvferry_runtime.sidecar.send_session import SendSession
from kvferry_runtime.sidecar.sending import Sending
from kvferry_runtime.sidecar.steering import band_tokens, seal_layers, wants_choice
from kvferry_runtime.wire.effects import AskFill, Effect, Finished, Release, Tell, Transmit, reason_of
from kvferry_runtime.wire.messages import Abort, AbortAck, AnyMessage, Commit, Credit, Nack, Reserve
from kvferry_runtime.wire.outgoing import Manifest, Work

MAX_OPEN = 4096

_SHUTTING_DOWN = "this sidecar is shutting down"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Lease:
    """A slot that a transfer has, for a session."""

    send: Sending
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
        transfer: TransferConfig,
    ) -> None:
        self._slots = slots
        self._hub = hub
        self._records = records
        self._metrics = metrics
        self._retries = retries
        self._clock = clock
        self._transfer = transfer
        self._sends: dict[str, Sending] = {}
        self._reservations = Reservations()
        self._leases: dict[int, _Lease] = {}
        self._sessions: dict[str, SendSession] = {}
        self._turn: OrderedDict[str, Sending] = OrderedDict()
        """Transfers that are bound to a session, in the order in which they get slots."""
        self._touched: dict[str, Sending] = {}
        """Transfers to which something happened in this turn of the event loop."""
        self._settling = False
        self._draining = False
        self.on_over: Callable[[], None] = lambda: None
        self.events: ChunkEvents | None = None
        """Set by the owner where a timeline is asked for."""

    @property
    def open(self) -> int:
        """Transfers whose end was not reported yet."""
        return sum(not send.record.over for send in self._sends.values())

    @property
    def sessions(self) -> list[SendSession]:
        return list(self._sessions.values())

    # ---- the agent ----

    def offer(self, message: Offer) -> None:
        """Raises ProtocolError: the transfer is open already, or of layers that the engine does not hold."""
        if message.transfer_id in self._sends:
            raise ProtocolError(f"transfer {message.transfer_id} was offered twice")
        held = range(0) if self._hub.attach is None else self._hub.attach.layers
        if message.layers.start < held.start or message.layers.stop > held.stop:
            offered = f"transfer {message.transfer_id} offers {layers_text(message.layers)}"
            raise ProtocolError(f"{offered}, the engine holds {layers_text(held)}")
        now = self._clock()
        send = Sending.begin(message, self._transfer, self._retries, now)
        machine = send.machine
        self._sends[message.transfer_id] = send
        self._records.add(send.record)
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
        send.course.computing(self._clock())
        if message.cut is not None:
            send.cuts.append(message.cut)
        self._run(send, send.machine.announced(first, sizes, self._clock()))

    def seal(self, message: SealOffer) -> None:
        send = self._sends.get(message.transfer_id)
        if send is None:
            return
        send.wire.computed(message.compute_finished_ns / 1e9)
        send.course.computed()
        manifest = Manifest(message.chunks, seal_layers(message.layers), message.first_token)
        self._run(send, send.machine.sealed(manifest, self._clock()))

    def filled(self, message: Filled) -> None:
        """Raises ProtocolError: the slot was not lent for this."""
        lease = self._leases.get(message.slot)
        if lease is None or lease.send.record.id != message.transfer_id:
            raise ProtocolError(f"slot {message.slot} was not lent for transfer {message.transfer_id}")
        self._run(lease.send, lease.send.filled(message, self._slots, self._metrics, self._clock()))

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
        if self.events is not None:
            self.events.sent(slot)
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

    def _bind(self, send: Sending, session: SendSession, message: Reserve) -> None:
        machine, now = send.machine, self._clock()
        rate = self._rate(session, others=1)
        course, choice = send.course.bound(message.codecs, session.agreed.layerwise, rate, now)
        accepted = machine.refusal(message, choice.method) is None
        effects = machine.reserve(session.name, message, session.granted, choice.layerwise, choice.method)
        if accepted:
            send.course = course
            if message.generation > 0:
                self._metrics.retried.labels(Direction.SEND.value).inc()
            send.record.peer = session.agreed.group
            send.record.lanes = session.lanes
            send.resume_tokens = message.resume_tokens
            send.record.chose(choice)
            self._metrics.chose(choice)
            self._turn[send.record.id] = send
            if wants_choice(send.offer):
                apart = send.course.exact_apart(rate, now)
                self._hub.send(
                    Chosen(
                        transfer_id=send.record.id,
                        layerwise=choice.layerwise,
                        exact_apart=apart,
                        band_tokens=band_tokens(send.offer, message.resume_tokens),
                    )
                )
        self._run(send, effects)

    def _rate(self, session: SendSession, others: int = 0) -> float | None:
        """One transfer's share of what this session's network takes. others: that will go over it beside those now."""
        rate = session.bytes_per_second
        return None if rate is None else rate / max(1, len(self._over(session)) + others)

    def _over(self, session: SendSession) -> list[Sending]:
        """The transfers that go over this session."""
        return [send for send in self._turn.values() if send.machine.peer == session.name]

    def _bound(self, session: SendSession, transfer_id: str) -> Sending | None:
        """The transfer, if it goes over this session."""
        send = self._sends.get(transfer_id)
        return send if send is not None and send.machine.peer == session.name else None

    # ---- the clock ----

    def tick(self, now: float) -> None:
        for send in list(self._sends.values()):
            if send.cuts and (session := self._sessions.get(send.machine.peer)):
                self._run(send, send.shortened(self._rate(session), self._metrics))
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
        if self._turn:
            self._settle_soon()

    def _settle_soon(self) -> None:
        if not self._settling:
            self._settling = True
            asyncio.get_running_loop().call_soon(self.settle)

    def settle(self) -> None:
        """Once after all that happened in one turn of the event loop, and not after each chunk."""
        if not self._settling:
            return
        try:
            self._pump()
        finally:
            self._settling = False
        touched, self._touched = self._touched, {}
        for send in touched.values():
            self._update(send)

    def _pump(self) -> None:
        """Give each transfer one slot in turn, until none can use another one."""
        moved = True
        while moved:
            moved = False
            for transfer_id in list(self._turn):
                send = self._turn.get(transfer_id)
                if send is not None and self._step(send):
                    self._turn.move_to_end(transfer_id)
                    moved = True

    def _step(self, send: Sending) -> bool:
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

    def _run(self, send: Sending, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case AskFill():
                    rate = self._rate(self._leases[effect.slot].session)
                    self._hub.send(send.fill(effect, rate, self._clock()))
                case Tell():
                    if session := self._sessions.get(effect.peer):
                        session.tell(effect.message)
                case Transmit():
                    self._transmit(send, effect)
                case Release():
                    self._release(effect.slot)
                case Finished():
                    self._finish(send, effect)
        self._touched[send.record.id] = send
        self._settle_soon()

    def _transmit(self, send: Sending, effect: Transmit) -> None:
        lease = self._leases[effect.slot]
        if not effect.resent:
            self._slots.move(effect.slot, SlotState.IN_FLIGHT)
        send.wire.started(self._clock())
        if self.events is not None:
            self.events.sending(effect.slot)
        lease.session.transmit(effect.slot, effect.number, effect.wire_bytes)

    def _release(self, slot: int) -> None:
        lease = self._leases.pop(slot)
        lease.session.held -= 1
        self._slots.move(slot, SlotState.LOST if lease.session.lost(slot) else SlotState.FREE)

    def _finish(self, send: Sending, outcome: Finished) -> None:
        send.finish(outcome, self._metrics, self._clock())
        self._hub.send(
            Sent(
                transfer_id=send.record.id,
                committed=outcome.reason is None,
                reason=send.record.reason,
                message=outcome.message,
            )
        )
        self.on_over()

    def _update(self, send: Sending) -> None:
        """Keep the record, and forget a transfer that is over with all its slots."""
        record, machine = send.record, send.machine
        send.update(self._clock())
        if not machine.active:
            self._turn.pop(record.id, None)
        if machine.drained and self._sends.get(record.id) is send:
            del self._sends[record.id]
