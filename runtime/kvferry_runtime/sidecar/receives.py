"""The transfers in which this side is D: asked for at every peer, handed to the agent, committed when complete."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvferry_runtime.errors import FrameError, ProtocolError, Reason, TransferFailed
from kvferry_runtime.ring.messages import Arrived, Cancel, Consumed, Fetch, Loaded, LoadFailed
from kvferry_runtime.ring.slots import SlotState
from kvferry_runtime.sidecar.chunk_events import ChunkEvents
from kvferry_runtime.sidecar.hub import AgentHub
from kvferry_runtime.sidecar.metrics import Metrics
from kvferry_runtime.sidecar.peers import Peers
from kvferry_runtime.sidecar.receive_session import ReceiveSession
from kvferry_runtime.sidecar.records import Direction, Records, TransferRecord
from kvferry_runtime.sidecar.ring_slots import RingSlots
from kvferry_runtime.transport.log_limit import LogLimit
from kvferry_runtime.wire.data import DataHeader
from kvferry_runtime.wire.effects import Acknowledge, Connect, Deliver, Drop, DropReason, Effect, Finished, Tell
from kvferry_runtime.wire.messages import Abort, AbortAck, AnyMessage, Deny, Open, Seal
from kvferry_runtime.wire.receiver import IncomingTransfer, Wanted

MAX_OPEN = 4096

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Receive:
    machine: IncomingTransfer
    record: TransferRecord
    started: float
    sessions: dict[str, ReceiveSession] = field(default_factory=dict)
    dials: set[asyncio.Task[None]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Loan:
    """A slot that the agent reads."""

    receive: _Receive
    session: ReceiveSession
    generation: int
    sequence: int


class Receives:
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
        self._receives: dict[str, _Receive] = {}
        self._loans: dict[int, _Loan] = {}
        self._touched: dict[str, _Receive] = {}
        """Transfers to which something happened in this turn of the event loop."""
        self._draining = False
        self._log_limit = LogLimit(clock)
        self.on_over: Callable[[], None] = lambda: None
        self.events: ChunkEvents | None = None
        """Set by the owner where a timeline is asked for."""
        self.peers: Peers
        """Set by the owner, since each of the two needs the other."""

    @property
    def open(self) -> int:
        """Transfers whose end was not reported yet."""
        return sum(not receive.record.over for receive in self._receives.values())

    # ---- the agent ----

    def fetch(self, message: Fetch) -> None:
        """Raises ProtocolError: the transfer is open already, or the range is empty."""
        attach = self._hub.attach
        if attach is None or message.transfer_id in self._receives or message.token_start >= message.token_stop:
            raise ProtocolError(f"transfer {message.transfer_id} cannot be fetched: open already, or an empty range")
        now = self._clock()
        wanted = Wanted(
            transfer_id=message.transfer_id,
            peers=tuple(dict.fromkeys(message.peers)),
            layers=attach.layers,
            token_start=message.token_start,
            token_stop=message.token_stop,
            codecs=tuple(attach.codecs),
            deadline=now + message.deadline_ms / 1000,
            retries=self._retries,
            resume_tokens=message.resume_tokens,
        )
        machine = IncomingTransfer(wanted)
        record = TransferRecord(
            id=message.transfer_id,
            direction=Direction.RECEIVE,
            tokens=message.token_stop - message.token_start,
            started_unix=time.time(),
            state=machine.state.value,
            first_layer=attach.first_layer,
            layer_count=attach.layer_count,
            peer=",".join(wanted.peers),
        )
        used = self._records.get(message.transfer_id, Direction.RECEIVE) is not None
        receive = self._receives[message.transfer_id] = _Receive(machine, record, now)
        self._records.add(record)
        if used:
            # A chunk of the first one may still be on its way and would be taken for one of this transfer.
            self._run(receive, machine.cancelled(Reason.INTERNAL, "this transfer id was used before", now))
        elif self._draining:
            self._run(receive, machine.cancelled(Reason.DRAINING, "this sidecar is shutting down", now))
        elif len(wanted.peers) > self._slots.total:
            text = f"{len(wanted.peers)} peers need a slot each, the ring has {self._slots.total}"
            self._run(receive, machine.cancelled(Reason.NO_CAPACITY, f"{text}: raise transfer.bufferBytes", now))
        elif len(self._receives) > MAX_OPEN:
            self._run(receive, machine.cancelled(Reason.NO_CAPACITY, f"{MAX_OPEN} transfers are open", now))
        else:
            self._run(receive, machine.start())

    def consumed(self, message: Consumed) -> None:
        """Raises ProtocolError: the slot was not lent for this."""
        loan = self._loans.get(message.slot)
        if loan is None or loan.receive.record.id != message.transfer_id:
            raise ProtocolError(f"slot {message.slot} was not lent for transfer {message.transfer_id}")
        del self._loans[message.slot]
        self._give_back(message.slot, loan.session)
        ok = message.ok and message.sequence == loan.sequence
        self._run(
            loan.receive,
            loan.receive.machine.consumed(loan.session.address, loan.generation, loan.sequence, ok, self._clock()),
        )

    def cancel(self, message: Cancel) -> None:
        receive = self._receives.get(message.transfer_id)
        if receive is not None:
            self._run(receive, receive.machine.cancelled(Reason.CANCELLED, message.reason, self._clock()))

    def agent_lost(self, message: str) -> None:
        """The engine's process is gone."""
        now = self._clock()
        for slot, loan in list(self._loans.items()):
            self._give_back(slot, loan.session)
        self._loans.clear()
        for receive in list(self._receives.values()):
            self._run(receive, receive.machine.agent_lost(message, now))

    # ---- the sessions ----

    def own(self, session: ReceiveSession) -> None:
        """A session that passed the handshake."""
        session.own(self._said, self._arrived, self._closed)

    def _said(self, session: ReceiveSession, message: AnyMessage) -> None:
        if isinstance(message, AbortAck):
            return
        if isinstance(message, Abort):
            session.tell(AbortAck(transfer_id=message.transfer_id, generation=message.generation))
        if not isinstance(message, Open | Deny | Seal | Abort):
            session.fail(Reason.PEER_LOST, f"{session.peer}: {type(message).__name__} may not come from prefill")
            return
        receive = self._receives.get(message.transfer_id)
        if receive is None or receive.sessions.get(session.address) is not session:
            return
        machine, peer, now = receive.machine, session.address, self._clock()
        match message:
            case Open():
                receive.record.codec, receive.record.layerwise = message.codec, message.layerwise
                self._run(receive, machine.opened(peer, message, now))
            case Deny():
                self._run(receive, machine.denied(peer, message, now))
            case Seal():
                self._run(receive, machine.sealed(peer, message, now))
            case Abort():
                self._run(receive, machine.aborted(peer, message, now))

    def _arrived(self, session: ReceiveSession, slot: int, number: int) -> None:
        """A message lies in this slot: lend it to the agent, or post the slot again."""
        now = self._clock()
        try:
            header = DataHeader.unpack(self._slots.header(slot))
            if header.wire_bytes > self._slots.chunk_bytes:
                raise FrameError(f"DATA header: {header.wire_bytes} bytes in a slot of {self._slots.chunk_bytes}")
        except FrameError as error:
            held_back = self._log_limit.held_back()
            if held_back is not None:
                _log.warning("dropped a chunk: %s", error, extra={"peer": session.address, "held_back": held_back})
            session.reject(number)
            self._drop(session, slot, DropReason.BAD_HEADER)
        else:
            if self.events is not None:
                self.events.received(header)
            self._place(session, slot, header, now)

    def _place(self, session: ReceiveSession, slot: int, header: DataHeader, now: float) -> None:
        receive = self._receives.get(header.transfer_id)
        if receive is None or receive.sessions.get(session.address) is not session:
            self._drop(session, slot, DropReason.UNKNOWN_TRANSFER)
            return
        verdict, *effects = receive.machine.arrived(session.address, header, now)
        match verdict:
            case Deliver():
                self._slots.move(slot, SlotState.LENT)
                self._loans[slot] = _Loan(receive, session, header.generation, header.sequence)
                self._hub.send(Arrived(transfer_id=header.transfer_id, slot=slot))
            case Drop():
                self._drop(session, slot, verdict.reason)
        self._run(receive, effects)

    def _closed(self, session: ReceiveSession, reason: Reason, message: str) -> None:
        self.peers.forget(session)
        _log.info("session closed: %s", message, extra={"session": session.name})
        if reason is Reason.PEER_LOST and not session.draining:
            self._metrics.sessions_lost.labels(Direction.RECEIVE.value).inc()
        now = self._clock()
        for receive in list(self._receives.values()):
            if receive.sessions.get(session.address) is session:
                self._unbind(receive, session.address)
                self._run(receive, receive.machine.peer_lost(session.address, reason, message, now))

    # ---- the clock ----

    def tick(self, now: float) -> None:
        for receive in list(self._receives.values()):
            sessions = receive.sessions.values()
            starved = bool(sessions) and all(not session.credits for session in sessions)
            self._run(receive, receive.machine.tick(now, starved))

    def drain(self) -> None:
        """Take nothing new."""
        self._draining = True

    def abandon(self, reason: Reason, message: str) -> None:
        """End everything that is still open."""
        for receive in list(self._receives.values()):
            self._run(receive, receive.machine.cancelled(reason, message, self._clock()))

    async def close(self) -> None:
        """Wait for no session any more."""
        dials = [dial for receive in self._receives.values() for dial in receive.dials]
        for dial in dials:
            dial.cancel()
        await asyncio.gather(*dials, return_exceptions=True)

    # ---- effects ----

    def _run(self, receive: _Receive, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Connect():
                    self._connect(receive, effect.peer)
                case Tell():
                    if session := receive.sessions.get(effect.peer):
                        session.tell(effect.message)
                case Acknowledge():
                    if session := receive.sessions.get(effect.peer):
                        session.acknowledge(effect.ack)
                case Finished():
                    self._finish(receive, effect)
        if not self._touched:
            asyncio.get_running_loop().call_soon(self.settle)
        self._touched[receive.record.id] = receive

    def settle(self) -> None:
        """Once after all that happened in one turn of the event loop, and not after each chunk."""
        touched, self._touched = self._touched, {}
        for receive in touched.values():
            self._update(receive)

    def _connect(self, receive: _Receive, peer: str) -> None:
        session = self.peers.usable(peer)
        if session is not None:
            self._bind(receive, peer, session)
            return
        dial = asyncio.create_task(self._reach(receive, peer, receive.machine.generation), name=f"reach {peer}")
        receive.dials.add(dial)
        dial.add_done_callback(receive.dials.discard)

    async def _reach(self, receive: _Receive, peer: str, generation: int) -> None:
        machine = receive.machine
        try:
            session = await self.peers.session(peer, max(0.0, machine.wanted.deadline - self._clock()))
        except TransferFailed as error:
            if machine.generation == generation:
                self._run(receive, machine.peer_lost(peer, error.reason, error.message, self._clock()))
            return
        except Exception as error:
            _log.exception("defect while dialling", extra={"peer": peer})
            if machine.generation == generation:
                text = f"defect in the sidecar: {error!r}"
                self._run(receive, machine.peer_lost(peer, Reason.INTERNAL, text, self._clock()))
            return
        if machine.over or machine.generation != generation:
            return
        if not session.open:
            self._run(receive, machine.peer_lost(peer, Reason.PEER_LOST, f"{peer}: lost at once", self._clock()))
            return
        self._bind(receive, peer, session)

    def _bind(self, receive: _Receive, peer: str, session: ReceiveSession) -> None:
        self._unbind(receive, peer)
        receive.sessions[peer] = session
        session.used += 1
        receive.record.lanes = tuple(dict.fromkeys(lane for item in receive.sessions.values() for lane in item.lanes))
        self._run(receive, receive.machine.connected(peer, self._clock()))

    def _unbind(self, receive: _Receive, peer: str) -> None:
        session = receive.sessions.pop(peer, None)
        if session is not None:
            session.used -= 1
            session.idle_since = asyncio.get_running_loop().time()
            if not session.used:
                self.peers.unused()

    def _give_back(self, slot: int, session: ReceiveSession) -> None:
        """The agent is done with a slot: it takes the next message of the session that it came from."""
        if session.open:
            self._slots.move(slot, SlotState.POSTED)
            session.post(slot)
        else:
            self._slots.move(slot, SlotState.FREE)

    def _drop(self, session: ReceiveSession, slot: int, reason: DropReason) -> None:
        self._metrics.dropped.labels(reason.value).inc()
        session.post(slot)

    def _finish(self, receive: _Receive, outcome: Finished) -> None:
        record, machine, now = receive.record, receive.machine, self._clock()
        record.over = True
        record.reason = "" if outcome.reason is None else outcome.reason.value
        record.message = outcome.message
        record.digest = ",".join(f"{digest:016x}" for digest in machine.digests)
        label = Direction.RECEIVE.value
        if outcome.reason is None:
            self._metrics.committed.labels(label).inc()
            self._metrics.raw_bytes.labels(label).inc(machine.raw_bytes)
            self._metrics.wire_bytes.labels(label).inc(machine.wire_bytes)
            self._metrics.chunks.labels(label).inc(machine.chunks)
            self._metrics.seconds.labels(label).observe(now - receive.started)
            if machine.tokens < record.tokens:
                record.shortened_to = machine.tokens
            self._hub.send(
                Loaded(
                    transfer_id=record.id,
                    first_token=machine.first_token,
                    chunks=machine.chunks,
                    raw_bytes=machine.raw_bytes,
                    wire_bytes=machine.wire_bytes,
                    tokens=record.shortened_to,
                )
            )
        else:
            self._metrics.failed.labels(label, outcome.reason.value).inc()
            _log.warning(
                "transfer failed: %s", outcome.message, extra={"transfer_id": record.id, "reason": record.reason}
            )
            self._hub.send(LoadFailed(transfer_id=record.id, reason=record.reason, message=outcome.message))

        self.on_over()

    def _update(self, receive: _Receive) -> None:
        """Keep the record, and forget a transfer that is over with all its slots."""
        record, machine = receive.record, receive.machine
        if machine.generation > record.generation:
            self._metrics.retried.labels(Direction.RECEIVE.value).inc(machine.generation - record.generation)
        if machine.resent > record.resent:
            self._metrics.resent.labels(Direction.RECEIVE.value).inc(machine.resent - record.resent)
        record.state = machine.state.value
        record.generation = machine.generation
        record.chunks, record.bytes_raw, record.bytes_wire = machine.chunks, machine.raw_bytes, machine.wire_bytes
        record.resent = machine.resent
        if record.over:
            for peer in list(receive.sessions):
                self._unbind(receive, peer)
            for dial in receive.dials:
                dial.cancel()
        if machine.drained and self._receives.get(record.id) is receive:
            del self._receives[record.id]
