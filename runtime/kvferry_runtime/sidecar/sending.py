"""One transfer in which this side is P: what was offered, how it goes, and what is told of it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from kvferry_contract.config import TransferConfig
from kvferry_runtime.auto.course import Course
from kvferry_runtime.codec.registry import name_of
from kvferry_runtime.ring.messages import Cut, Fill, Filled, Offer
from kvferry_runtime.sidecar.chunk_header import checked_header
from kvferry_runtime.sidecar.metrics import Metrics
from kvferry_runtime.sidecar.records import Direction, TransferRecord
from kvferry_runtime.sidecar.ring_slots import RingSlots
from kvferry_runtime.sidecar.steering import best_cut, course_of, seal_layers
from kvferry_runtime.sidecar.wire_time import WireTime
from kvferry_runtime.wire.effects import AskFill, Effect, Finished
from kvferry_runtime.wire.outgoing import Offered
from kvferry_runtime.wire.sender import OutgoingTransfer

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sending:
    """resume_tokens: see `Reserve`, of the peer that it is bound to. cuts: places at which it could end."""

    offer: Offer
    machine: OutgoingTransfer
    record: TransferRecord
    course: Course
    started: float
    resume_tokens: int = 0
    cuts: list[Cut] = field(default_factory=list)
    wire: WireTime = field(default_factory=WireTime)

    @classmethod
    def begin(cls, offer: Offer, transfer: TransferConfig, retries: int, now: float) -> Sending:
        """retries: generations that may follow the first one."""
        layerwise = offer.layerwise is not False
        machine = OutgoingTransfer(
            Offered(
                transfer_id=offer.transfer_id,
                layers=offer.layers,
                tokens=offer.tokens,
                estimated_bytes=offer.estimated_bytes,
                layerwise=layerwise,
                deadline=now + offer.deadline_ms / 1000,
                retries=retries,
            )
        )
        record = TransferRecord(
            id=offer.transfer_id,
            direction=Direction.SEND,
            tokens=offer.tokens,
            started_unix=time.time(),
            state=machine.state.value,
            first_layer=offer.first_layer,
            layer_count=offer.layer_count,
            codec=offer.codec,
            layerwise=layerwise,
        )
        return cls(offer, machine, record, course_of(offer, transfer), now)

    def fill(self, effect: AskFill, bytes_per_second: float | None, now: float) -> Fill:
        """What the agent is asked for. bytes_per_second: this transfer's share of the link."""
        method = self.course.method(self.machine.raw_bytes_of(effect.sequence), bytes_per_second, now)
        return Fill(self.record.id, effect.slot, effect.sequence, effect.generation, method)

    def filled(self, message: Filled, slots: RingSlots, metrics: Metrics, now: float) -> list[Effect]:
        """The agent gives a slot back; what it says of it is held against the header that it wrote.

        Raises:
            ProtocolError: the slot is not lent for this chunk.
        """
        raw_bytes = wire_bytes = 0
        if message.wire_bytes:
            generation = self.machine.generation_of(message.slot)
            header = checked_header(
                message, slots.header(message.slot), generation, slots.chunk_bytes, self.offer.layers
            )
            if header is not None:
                raw_bytes, wire_bytes = header.raw_bytes, header.wire_bytes
                self.record.carried(name_of(header.codec), raw_bytes)
        if message.check is not None:
            self.record.checked(message.check.relative_error)
            metrics.checked(message.check)
        return self.machine.filled(message.slot, message.sequence, raw_bytes, wire_bytes, message.digest, now)

    def shortened(self, bytes_per_second: float | None, metrics: Metrics) -> list[Effect]:
        """End early, once, where decode would compute the rest before the link brings it."""
        if not self.resume_tokens or not self.course.may_end_early(bytes_per_second):
            return []
        cuts = [cut for cut in self.cuts if cut.tokens % self.resume_tokens == 0]
        cut = best_cut(self.machine, self.course, cuts, bytes_per_second) if cuts else None
        if cut is None:
            return []
        self.cuts.clear()
        self.record.shortened_to = cut.tokens
        metrics.shortened.inc()
        return self.machine.shortened(cut.chunks, seal_layers(cut.layers))

    def update(self, now: float) -> None:
        """Bring the record up to date."""
        record, machine = self.record, self.machine
        record.state = machine.state.value
        record.generation = machine.generation
        record.layerwise = machine.layerwise
        record.chunks = machine.chunks
        record.bytes_raw = machine.raw_bytes
        record.bytes_wire = machine.wire_bytes
        record.resent = machine.resent
        if not record.over or not record.wire_seconds:
            record.wire_seconds = self.wire.busy(now)
            record.hidden_seconds = self.wire.hidden(now)

    def finish(self, outcome: Finished, metrics: Metrics, now: float) -> None:
        """Its outcome is decided: into the record, the metrics and, if it failed, the log."""
        record, machine = self.record, self.machine
        record.over = True
        record.digest = f"{machine.digest:016x}" if machine.chunks else ""
        record.reason = "" if outcome.reason is None else outcome.reason.value
        record.message = outcome.message
        label = Direction.SEND.value
        if outcome.reason is not None:
            metrics.failed.labels(label, outcome.reason.value).inc()
            _log.warning(
                "transfer failed: %s", outcome.message, extra={"transfer_id": record.id, "reason": record.reason}
            )
            return
        metrics.committed.labels(label).inc()
        metrics.raw_bytes.labels(label).inc(machine.raw_bytes)
        metrics.wire_bytes.labels(label).inc(machine.wire_bytes)
        metrics.chunks.labels(label).inc(machine.chunks)
        metrics.wire_seconds.inc(self.wire.busy(now))
        metrics.hidden_seconds.inc(self.wire.hidden(now))
        metrics.seconds.labels(label).observe(now - self.started)
