"""One outgoing transfer at P: offered → open → streaming → sealed → committed or aborted. Pure.

The machine decides which chunk goes next and when a slot is free again; the credits of the session that it sends on
are given to it. It reports exactly once (`Finished`), and every slot that it was lent is released exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from kvferry_runtime.errors import ProtocolError, Reason
from kvferry_runtime.wire.credits import SendCredits
from kvferry_runtime.wire.effects import AskFill, Effect, Finished, Release, Tell, Transmit, reason_of
from kvferry_runtime.wire.messages import MAX_TEXT, Abort, Commit, Deny, Nack, Reserve, SealLayer
from kvferry_runtime.wire.outgoing import (
    MAX_CHUNKS,
    Chunk,
    ChunkState,
    Hold,
    Manifest,
    Offered,
    SendProgress,
    SendState,
    Work,
    deny,
    digest_of,
    misfit,
    open_of,
    seal_of,
)
from kvferry_runtime.wire.retries import GRACE_SECONDS, may_retry


class OutgoingTransfer:
    """Methods take events and return effects; `now` is in seconds of a monotonic clock."""

    def __init__(self, offer: Offered) -> None:
        self.offer = offer
        self.state = SendState.OFFERED
        self.generation = 0
        self.peer = ""
        self._layerwise = offer.layerwise
        self._credits: SendCredits | None = None
        self._chunks: list[Chunk] = []
        self._ends = [0]
        """Raw bytes before each chunk, and of all of them."""
        self._holds: dict[int, Hold] = {}
        self._manifest: Manifest | None = None
        self._progress = SendProgress()
        self._used_generations = -1
        self._outcome: Finished | None = None
        self._over_since = 0.0
        self._reported = False

    # ---- questions ----

    @property
    def over(self) -> bool:
        """Its outcome is decided, though perhaps not reported yet."""
        return self._outcome is not None

    @property
    def drained(self) -> bool:
        """Reported, and no slot is held: it can be forgotten."""
        return self._reported and not self._holds

    @property
    def active(self) -> bool:
        """Bound to a peer's session."""
        return self.state in (SendState.OPEN, SendState.STREAMING, SendState.SEALED)

    @property
    def layerwise(self) -> bool:
        """Whether chunks go out before the forward pass is over."""
        return self._layerwise

    @property
    def chunks(self) -> int:
        return self._progress.chunks

    @property
    def raw_bytes(self) -> int:
        return self._progress.raw_bytes

    @property
    def wire_bytes(self) -> int:
        return self._progress.wire_bytes

    @property
    def resent(self) -> int:
        return self._progress.resent

    @property
    def digest(self) -> int:
        """xxh3-64 over the digests of the chunks, each as u64 little-endian, by sequence."""
        return digest_of([chunk.digest for chunk in self._chunks])

    def raw_bytes_of(self, sequence: int) -> int:
        """Of an announced chunk."""
        return self._chunks[sequence].raw_bytes

    def refusal(self, message: Reserve, codec: str) -> Deny | None:
        """Why `reserve` would turn this down, None if it would not. codec: see there."""
        if self._outcome is not None:
            return deny(message, self._outcome.reason or Reason.DENIED, f"over: {self._outcome.message}")
        used = f"this transfer is {self.state.value} in generation {self._used_generations}"
        text = used if message.generation <= self._used_generations else misfit(self.offer, message, codec)
        return deny(message, Reason.DENIED, text) if text else None

    def generation_of(self, slot: int) -> int:
        """For which generation this slot was lent."""
        return self._holds[slot].generation

    def work(self) -> Work | None:
        """What `fill` or `resend` would do next; None if there is nothing, or no credit for it."""
        if not self.active or self._credits is None or self._credits.available < 1:
            return None
        if self._resendable() is not None:
            return Work.RESEND
        may_fill = self._layerwise or self._manifest is not None
        return Work.FILL if may_fill and self._waiting else None

    # ---- the engine ----

    def announced(self, first_sequence: int, raw_bytes: Sequence[int], now: float) -> list[Effect]:
        """Chunks from `first_sequence` on can be filled from now on; sizes in bytes."""
        if self.over:
            return []
        if first_sequence != len(self._chunks) or len(self._chunks) + len(raw_bytes) > MAX_CHUNKS:
            return self._end(Reason.INTERNAL, f"chunk {first_sequence} was announced after {len(self._chunks)}", now)
        self._chunks += [Chunk(size) for size in raw_bytes]
        self._ends += list(accumulate(raw_bytes, initial=self._ends[-1]))[1:]
        return []

    def sealed(self, manifest: Manifest, now: float) -> list[Effect]:
        """The forward pass is over, and every chunk was announced."""
        if self.over:
            return []
        if text := "sealed twice" if self._manifest else manifest.contradiction(self.offer, len(self._chunks)):
            return self._end(Reason.INTERNAL, text, now)
        self._manifest = manifest
        return self._maybe_seal()

    def waiting_bytes(self, chunks: int) -> int | None:
        """Raw bytes of the first so many chunks that were not handed out yet.

        None if the transfer cannot be `shortened` to these chunks: later ones were handed out, the forward pass is not
        over, or nothing is waiting any more.
        """
        following = self._progress.following
        if not self.active or self._manifest is None or not self._waiting or following > chunks:
            return None
        return self._ends[min(chunks, len(self._chunks))] - self._ends[following]

    def shortened(self, chunks: int, layers: tuple[SealLayer, ...]) -> list[Effect]:
        """Be content with the first so many chunks, which hold as many tokens of every layer as `layers` says."""
        assert self._manifest is not None and self.waiting_bytes(chunks) is not None
        del self._chunks[chunks:], self._ends[chunks + 1 :]
        self._manifest = Manifest(chunks, layers, self._manifest.first_token)
        return self._maybe_seal()

    def fill(self, slot: int) -> list[Effect]:
        """Have the next chunk filled into this free slot. Only when `work` says FILL."""
        assert self._credits is not None
        sequence = self._progress.following
        self._progress.following += 1
        chunk = self._chunks[sequence]
        chunk.state, chunk.slot = ChunkState.LENT, slot
        self._credits.reserve()
        self._holds[slot] = Hold(chunk, self._credits, sequence, self.generation)
        return [AskFill(slot, sequence, self.generation)]

    def filled(
        self, slot: int, sequence: int, raw_bytes: int, wire_bytes: int, digest: int, now: float
    ) -> list[Effect]:
        """The agent gives a slot back; with no bytes in it if it could not fill it.

        Raises:
            ProtocolError: the slot is not lent for this chunk.
        """
        hold = self._holds.get(slot)
        if hold is None or not hold.lent or hold.sequence != sequence:
            raise ProtocolError(f"slot {slot} came back with chunk {sequence}, but was not lent for it")
        hold.lent = False
        chunk = hold.chunk
        if chunk is None:
            hold.credits.cancel()
            return [*self._release_idle(slot), *self._maybe_report()]
        if raw_bytes != chunk.raw_bytes or wire_bytes <= 0:
            hold.credits.cancel()
            message = f"the engine filled chunk {sequence} with {raw_bytes} bytes, {chunk.raw_bytes} were announced"
            return self._end(Reason.INTERNAL, message, now)
        chunk.wire_bytes, chunk.digest, chunk.state = wire_bytes, digest, ChunkState.OUT
        self.state = SendState.STREAMING
        self._progress.chunks += 1
        self._progress.raw_bytes += raw_bytes
        self._progress.wire_bytes += wire_bytes
        return [self._transmit(slot, hold, chunk, resent=False), *self._maybe_seal()]

    def cancelled(self, reason: Reason, message: str, now: float) -> list[Effect]:
        """This side gives up, for good."""
        return self._end(reason, message, now)

    def agent_lost(self, message: str, now: float) -> list[Effect]:
        """The engine is gone: its slots are ours again, and nobody is left to report to."""
        effects = self._end(Reason.ENGINE_LOST, message, now)
        for hold in self._holds.values():
            if hold.lent:
                hold.lent = False
                hold.credits.cancel()
        return [*effects, *self._release_idle(), *self._maybe_report()]

    # ---- the peer ----

    def reserve(self, peer: str, message: Reserve, credits: SendCredits, layerwise: bool, codec: str) -> list[Effect]:
        """A peer wants this transfer. layerwise: agreed with that peer. A newer generation replaces the older one.

        codec: with which it begins; a chunk may have any other one that the peer knows.
        """
        if (refused := self.refusal(message, codec)) is not None:
            return [Tell(peer, refused)]
        effects = self._rewind() if self.active else []
        self.generation = self._used_generations = message.generation
        self.peer = peer
        self.state = SendState.OPEN
        self._credits = credits
        self._layerwise = self.offer.layerwise and layerwise
        opened = open_of(self.offer, self.generation, codec, self._layerwise)
        return [*effects, Tell(peer, opened), *self._maybe_seal()]

    def resend(self) -> list[Effect]:
        """Send the next rejected chunk once more. Only when `work` says RESEND."""
        sequence = self._resendable()
        assert sequence is not None and self._credits is not None
        self._progress.resend.remove(sequence)
        chunk = self._chunks[sequence]
        hold = self._holds[chunk.slot]
        self._credits.reserve()
        self._progress.resent += 1
        return [self._transmit(chunk.slot, hold, chunk, resent=True)]

    def completed(self, slot: int) -> list[Effect]:
        """A `Transmit` of this slot is over, well or not: the network no longer reads it."""
        self._holds[slot].in_flight = False
        return [*self._release_idle(slot), *self._maybe_report()]

    def acknowledged(self, generation: int, sequence: int) -> list[Effect]:
        """The chunk is in place at the peer."""
        if not self.active or generation != self.generation or sequence >= len(self._chunks):
            return []
        chunk = self._chunks[sequence]
        if chunk.state is not ChunkState.OUT:
            return []
        chunk.state = ChunkState.ACKED
        self._holds[chunk.slot].chunk = None
        if sequence in self._progress.resend:
            self._progress.resend.remove(sequence)
        return self._release_idle(chunk.slot)

    def nacked(self, message: Nack, now: float) -> list[Effect]:
        """The peer misses these chunks or could not use them: each is sent once more."""
        if not self.active or message.generation != self.generation:
            return []
        for sequence in message.sequences:
            if sequence >= len(self._chunks):
                return self._end(Reason.INTERNAL, f"the peer misses chunk {sequence}, which was never announced", now)
            chunk = self._chunks[sequence]
            if chunk.state is ChunkState.OUT and not chunk.resent:
                self._send_again(sequence)
        return []

    def unread(self, number: int, now: float) -> list[Effect]:
        """The peer could not read the message with this credit number: its chunk is sent once more."""
        hold = next((hold for hold in self._holds.values() if hold.number == number), None)
        if hold is None or hold.chunk is None or not self.active:
            return []
        if hold.chunk.resent:
            return self._end(Reason.CORRUPT, f"chunk {hold.sequence} could not be read although sent twice", now)
        self._send_again(hold.sequence)
        return []

    def committed(self, message: Commit, now: float) -> list[Effect]:
        """Everything is in place at the peer."""
        if not self.active or message.generation != self.generation:
            return []
        theirs = (message.chunks, message.raw_bytes, message.wire_bytes, message.digest)
        ours = (self.chunks, self.raw_bytes, self.wire_bytes, self.digest)
        if self.state is not SendState.SEALED or theirs != ours:
            text = f"the peer committed chunks, raw and wire bytes, digest {theirs}; sent were {ours}"
            return self._end(Reason.CORRUPT, text, now)
        self.state = SendState.COMMITTED
        return self._conclude(Finished(None, ""), now)

    def aborted(self, message: Abort, now: float) -> list[Effect]:
        """The peer gave up this generation."""
        if not self.active or message.generation != self.generation:
            return []
        return self._end(reason_of(message.reason), message.message, now, tell=False)

    def peer_lost(self, reason: Reason, message: str, now: float) -> list[Effect]:
        """The session is gone. Its messages still complete, each on its own."""
        return self._end(reason, message, now, tell=False) if self.active else []

    def tick(self, now: float) -> list[Effect]:
        """Look at the clock; at least once a second."""
        if not self.over and now >= self.offer.deadline:
            if self._credits is not None and self._credits.spent and self._waiting:
                text = f"decode had no slot for {self._waiting} of {len(self._chunks)} chunks in time"
                return self._end(Reason.NO_CAPACITY, text, now)
            where = "no decode asked for it" if self._used_generations < 0 else f"it was {self.state.value}"
            return self._end(Reason.DEADLINE, f"not over within its deadline: {where}", now)
        return self._maybe_report(late=now - self._over_since >= GRACE_SECONDS)

    # ---- inside ----

    @property
    def _waiting(self) -> int:
        """Chunks that can be filled and were not handed out yet."""
        return len(self._chunks) - self._progress.following

    def _resendable(self) -> int | None:
        """The first rejected chunk whose earlier message has left its slot."""
        for sequence in self._progress.resend:
            if not self._holds[self._chunks[sequence].slot].in_flight:
                return sequence
        return None

    def _send_again(self, sequence: int) -> None:
        self._chunks[sequence].resent = True
        self._progress.resend.append(sequence)

    def _transmit(self, slot: int, hold: Hold, chunk: Chunk, resent: bool) -> Transmit:
        number = hold.credits.take()
        hold.number = number
        hold.in_flight = True
        return Transmit(self.peer, slot, number, chunk.wire_bytes, resent)

    def _maybe_seal(self) -> list[Effect]:
        """SEAL once everything is out."""
        manifest, progress = self._manifest, self._progress
        if self.state not in (SendState.OPEN, SendState.STREAMING):
            return []
        if manifest is None or progress.chunks < manifest.chunks:
            return []
        self.state = SendState.SEALED
        return [Tell(self.peer, seal_of(self.offer, self.generation, manifest, progress, self.digest))]

    def _end(self, reason: Reason, message: str, now: float, tell: bool = True) -> list[Effect]:
        """Give up this generation, or the transfer when no other may follow."""
        if self.over:
            return []
        effects: list[Effect] = []
        text = message[:MAX_TEXT]
        if self.active and tell:
            abort = Abort(
                transfer_id=self.offer.transfer_id, generation=self.generation, reason=reason.value, message=text
            )
            effects.append(Tell(self.peer, abort))
        if self.active and not tell and may_retry(reason, self.generation, self.offer.retries):
            return [*effects, *self._rewind()]
        self.state = SendState.ABORTED
        return [*effects, *self._conclude(Finished(reason, text), now)]

    def _rewind(self) -> list[Effect]:
        """Back to offered: every chunk can be filled again, for a newer generation."""
        self.state = SendState.OFFERED
        self._credits = None
        effects = self._let_go()
        self._chunks = [Chunk(chunk.raw_bytes) for chunk in self._chunks]
        self._progress = SendProgress()
        return effects

    def _conclude(self, outcome: Finished, now: float) -> list[Effect]:
        self._outcome = outcome
        self._over_since = now
        self._credits = None
        return [*self._let_go(), *self._maybe_report()]

    def _let_go(self) -> list[Effect]:
        for hold in self._holds.values():
            hold.chunk = None
        return self._release_idle()

    def _release_idle(self, *slots: int) -> list[Effect]:
        """Release those of these slots (of all, if none is named) that nobody needs any more."""
        idle = [slot for slot in slots or self._holds if self._holds[slot].idle]
        for slot in idle:
            del self._holds[slot]
        return [Release(slot) for slot in idle]

    def _maybe_report(self, late: bool = False) -> list[Effect]:
        """Report once the agent has no slot of this transfer, or has kept one for too long."""
        if self._outcome is None or self._reported:
            return []
        if not late and any(hold.lent for hold in self._holds.values()):
            return []
        self._reported = True
        return [self._outcome]
