"""One incoming transfer at D: reserved → receiving → verifying → committed or failed, over one or several peers. Pure.

It is committed only when the chunks of all peers together cover every layer and token of the range, without gap and
without overlap, the agent has found every payload good, and each peer's SEAL agrees with what came from it in number,
bytes, layers and digest. It reports exactly once (`Finished`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvferry_runtime.errors import Reason
from kvferry_runtime.layout import layers_text
from kvferry_runtime.wire.coverage import Coverage, misplaced
from kvferry_runtime.wire.data import DataHeader
from kvferry_runtime.wire.effects import (
    Acknowledge,
    Connect,
    Deliver,
    Drop,
    DropReason,
    Effect,
    Finished,
    Tell,
    reason_of,
)
from kvferry_runtime.wire.incoming import MAX_SEQUENCES, Arrival, PeerProgress, PeerState, Received
from kvferry_runtime.wire.messages import MAX_TEXT, Abort, Ack, Commit, Deny, Nack, Open, Reserve, Seal
from kvferry_runtime.wire.outgoing import MAX_CHUNKS
from kvferry_runtime.wire.retries import GRACE_SECONDS, may_retry

LOSS_SECONDS = 2.0
"""After a SEAL, silence for this long makes what is missing count as lost: it is asked for again, once."""


class ReceiveState(StrEnum):
    RESERVED = "reserved"
    RECEIVING = "receiving"
    VERIFYING = "verifying"
    """Every peer has sealed."""
    COMMITTED = "committed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the engine asked for. peers: names without repetition. layers: global numbers held here.

    token_start, token_stop: half-open. resume_tokens: the peer may send a shorter range, of a multiple of so many
    tokens, from whose end the engine goes on; 0: it may not. deadline: absolute, in seconds of the caller's clock.
    retries: generations that may follow the first one.
    """

    transfer_id: str
    peers: tuple[str, ...]
    layers: range
    token_start: int
    token_stop: int
    codecs: tuple[str, ...]
    deadline: float
    retries: int
    resume_tokens: int = 0


class IncomingTransfer:
    """Methods take events and return effects; `now` is in seconds of a monotonic clock."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.generation = 0
        self.first_token = -1
        self.resent = 0
        self._failure: Finished | None = None
        self._failed_at = 0.0
        self._retry = False
        self._committed = False
        self._reported = False
        self._lent = 0
        self._restart()

    # ---- questions ----

    @property
    def state(self) -> ReceiveState:
        if self._committed or self._failure is not None:
            return ReceiveState.COMMITTED if self._committed else ReceiveState.FAILED
        states = {progress.state for progress in self._peers.values()}
        if states == {PeerState.SEALED}:
            return ReceiveState.VERIFYING
        return ReceiveState.RECEIVING if states & {PeerState.RECEIVING, PeerState.SEALED} else ReceiveState.RESERVED

    @property
    def over(self) -> bool:
        """This generation's outcome is decided, though perhaps not reported yet."""
        return self._committed or self._failure is not None

    @property
    def drained(self) -> bool:
        """Reported, and the agent has no slot of it: it can be forgotten."""
        return self._reported and not self._lent

    @property
    def chunks(self) -> int:
        """In place, of all peers in this generation; so are the bytes."""
        return sum(progress.chunks for progress in self._peers.values())

    @property
    def raw_bytes(self) -> int:
        return sum(progress.raw_bytes for progress in self._peers.values())

    @property
    def wire_bytes(self) -> int:
        return sum(progress.wire_bytes for progress in self._peers.values())

    @property
    def tokens(self) -> int:
        """How many of the wanted tokens come: all of them, or what the peer's SEAL says it has sent."""
        return self._claimed.stop - self._claimed.start

    @property
    def digests(self) -> tuple[int, ...]:
        """What each peer sealed, in the order of `wanted.peers`; 0 where there is no SEAL."""
        return tuple(0 if p.seal is None else p.seal.digest for p in self._peers.values())

    # ---- this side ----

    def start(self) -> list[Effect]:
        return [Connect(peer) for peer in self.wanted.peers]

    def connected(self, peer: str, now: float) -> list[Effect]:
        """There is a session to this peer."""
        progress = self._peers[peer]
        if self.over or progress.state is not PeerState.CONNECTING:
            return []
        progress.state = PeerState.RESERVED
        reserve = Reserve(
            transfer_id=self.wanted.transfer_id,
            generation=self.generation,
            first_layer=self.wanted.layers.start,
            layer_count=len(self.wanted.layers),
            token_start=self.wanted.token_start,
            token_stop=self.wanted.token_stop,
            codecs=list(self.wanted.codecs),
            resume_tokens=self.wanted.resume_tokens if len(self.wanted.peers) == 1 else 0,
            deadline_ms=max(0, int((self.wanted.deadline - now) * 1000)),
        )
        return [Tell(peer, reserve)]

    def cancelled(self, reason: Reason, message: str, now: float) -> list[Effect]:
        """This side gives up, for good."""
        self._retry = False
        if not self.over:
            return self._fail(reason, message, now, final=True)
        if not self._committed and not self._reported:
            self._failure = Finished(reason, message[:MAX_TEXT])
        return self._settle(now)

    def agent_lost(self, message: str, now: float) -> list[Effect]:
        """The engine is gone: its slots are ours again, and nobody is left to report to."""
        self._lent = 0
        return self.cancelled(Reason.ENGINE_LOST, message, now)

    # ---- the peers ----

    def opened(self, peer: str, message: Open, now: float) -> list[Effect]:
        progress = self._current(peer, message.generation)
        if progress is None or progress.state is not PeerState.RESERVED:
            return []
        if message.codec not in self.wanted.codecs:
            return self._fail(Reason.INTERNAL, f"codec {message.codec!r} was opened, but not asked for", now)
        progress.layers = message.layers
        if text := misplaced({name: item.layers for name, item in self._peers.items()}, self.wanted.layers):
            return self._fail(Reason.DENIED, text, now)
        progress.state = PeerState.RECEIVING
        progress.heard_at = now
        return []

    def denied(self, peer: str, message: Deny, now: float) -> list[Effect]:
        if self._current(peer, message.generation) is None:
            return []
        return self._fail(reason_of(message.reason), message.message, now)

    def arrived(self, peer: str, header: DataHeader, now: float) -> list[Effect]:
        """A chunk of this transfer lies in a slot. The first effect is `Deliver` or `Drop`."""
        if self.over or peer not in self._peers or header.generation != self.generation:
            return [Drop(DropReason.STALE_GENERATION)]
        progress = self._peers[peer]
        if progress.state is PeerState.CONNECTING:
            return [Drop(DropReason.STALE_GENERATION)]
        progress.heard_at = now
        place = (header.layer, header.layer_count, header.token_start, header.token_stop)
        known = progress.received.get(header.sequence)
        if known is not None:
            if known.arrival is not Arrival.BAD:
                return [Drop(DropReason.DUPLICATE)]
            if not known.same_place(header):
                text = f"chunk {header.sequence} came again for another place: {place}"
                return [Drop(DropReason.OUT_OF_RANGE), *self._fail(Reason.CORRUPT, text, now)]
            known.header, known.arrival = header, Arrival.LENT
        else:
            if not self._claimed.contains(*place) or header.sequence >= MAX_CHUNKS:
                text = f"chunk {header.sequence} (layer, layers, tokens) {place} was not asked for"
                return [Drop(DropReason.OUT_OF_RANGE), *self._fail(Reason.CORRUPT, text, now)]
            if not self._claimed.add(*place):
                text = f"chunk {header.sequence} (layer, layers, tokens) {place} overlaps another one"
                return [Drop(DropReason.OUT_OF_RANGE), *self._fail(Reason.CORRUPT, text, now)]
            progress.received[header.sequence] = Received(header, Arrival.LENT)
        self._lent += 1
        return [Deliver()]

    def consumed(self, peer: str, generation: int, sequence: int, ok: bool, now: float) -> list[Effect]:
        """The agent gives a chunk's slot back; ok: its payload was good and is in place."""
        self._lent = max(0, self._lent - 1)
        progress = self._current(peer, generation)
        if progress is None:
            return self._settle(now)
        if ok:
            progress.placed(sequence)
            ack = Ack(transfer_id=self.wanted.transfer_id, generation=generation, sequence=sequence)
            return [Acknowledge(peer, ack), *self._review(peer, now)]
        progress.received[sequence].arrival = Arrival.BAD
        if sequence in progress.nacked:
            return self._fail(Reason.CORRUPT, f"chunk {sequence} was not good, and not when sent again either", now)
        return self._nack(peer, [sequence])

    def sealed(self, peer: str, message: Seal, now: float) -> list[Effect]:
        """The peer has handed everything to the network."""
        progress = self._current(peer, message.generation)
        if progress is None or progress.state is not PeerState.RECEIVING:
            return []
        if message.chunks > MAX_CHUNKS:
            return self._fail(Reason.CORRUPT, f"{message.chunks} chunks were sealed; at most {MAX_CHUNKS} can be", now)
        if text := self._shortened(message):
            return self._fail(Reason.CORRUPT, text, now)
        if [item.layer for item in message.layers] != list(progress.layers):
            sealed = sorted({item.layer for item in message.layers})
            return self._fail(Reason.CORRUPT, f"{peer}: opened {layers_text(progress.layers)}, sealed {sealed}", now)
        progress.state = PeerState.SEALED
        progress.seal = message
        progress.heard_at = now
        return self._review(peer, now)

    def aborted(self, peer: str, message: Abort, now: float) -> list[Effect]:
        """The peer gave up this generation."""
        if self._current(peer, message.generation) is None:
            return []
        self._peers[peer].state = PeerState.CONNECTING
        return self._fail(reason_of(message.reason), message.message, now)

    def peer_lost(self, peer: str, reason: Reason, message: str, now: float) -> list[Effect]:
        """There is no session to this peer (any more)."""
        if self.over:
            return []
        self._peers[peer].state = PeerState.CONNECTING
        return self._fail(reason, message, now)

    def tick(self, now: float, starved: bool) -> list[Effect]:
        """Look at the clock; at least once a second. starved: no slot is posted for any of its peers."""
        if self.over:
            return self._settle(now)
        if now >= self.wanted.deadline:
            waiting = ", ".join(f"{peer} {progress.state.value}" for peer, progress in self._peers.items())
            if starved:
                text = f"no slot became free within the deadline: the engine has taken none out of the ring ({waiting})"
                return self._fail(Reason.NO_CAPACITY, text, now, final=True)
            return self._fail(Reason.DEADLINE, f"not over within its deadline: {waiting}", now, final=True)
        effects: list[Effect] = []
        for peer, progress in self._peers.items():
            if progress.seal is not None and now - progress.heard_at >= LOSS_SECONDS:
                effects += self._nack(peer, [number for number in progress.missing() if number not in progress.nacked])
        return effects

    # ---- inside ----

    def _restart(self) -> None:
        self._peers = {peer: PeerProgress() for peer in self.wanted.peers}
        self._claimed = Coverage(self.wanted.layers, self.wanted.token_start, self.wanted.token_stop)

    def _current(self, peer: str, generation: int) -> PeerProgress | None:
        if self.over or generation != self.generation:
            return None
        return self._peers.get(peer)

    def _shortened(self, seal: Seal) -> str | None:
        """Take the SEAL's range where it is a shorter one that was allowed; what is wrong with it, else None.

        Where none was allowed nothing is taken here, and the rest of the range will be missed.
        """
        wanted = self.wanted
        lengths = {item.tokens for item in seal.layers}
        resume = wanted.resume_tokens if len(wanted.peers) == 1 else 0
        if not resume or lengths == {self.tokens}:
            return None
        tokens = min(lengths, default=0)
        if len(lengths) != 1 or {item.layer for item in seal.layers} != set(wanted.layers):
            return f"sealed were {sorted(lengths)} tokens of {len(seal.layers)} layers, not as many of every layer"
        if not 0 < tokens < self.tokens or tokens % resume:
            return f"sealed were {tokens} tokens of {self.tokens}; it may be a multiple of {resume}, or all"
        if not self._claimed.shorten(wanted.token_start + tokens):
            return f"sealed were {tokens} tokens, but later ones had come"
        return None

    def _review(self, peer: str, now: float) -> list[Effect]:
        """Whether this peer's part is complete and as it was sealed."""
        progress = self._peers[peer]
        if not progress.in_place:
            return []
        if text := progress.contradiction():
            return self._fail(Reason.CORRUPT, f"{peer}: {text}", now)
        return self._maybe_commit(now)

    def _nack(self, peer: str, sequences: Sequence[int]) -> list[Effect]:
        self._peers[peer].nacked.update(sequences)
        self.resent += len(sequences)
        return [
            Tell(
                peer,
                Nack(
                    transfer_id=self.wanted.transfer_id,
                    generation=self.generation,
                    sequences=list(sequences[start : start + MAX_SEQUENCES]),
                ),
            )
            for start in range(0, len(sequences), MAX_SEQUENCES)
        ]

    def _maybe_commit(self, now: float) -> list[Effect]:
        if not all(progress.in_place for progress in self._peers.values()):
            return []
        seals = [progress.seal for progress in self._peers.values() if progress.seal is not None]
        if gap := self._claimed.gap():
            layer, start, stop = gap
            text = f"layer {layer}, tokens {start} to {stop}: no peer sent them"
            return self._fail(Reason.CORRUPT, text, now)
        tokens = {seal.first_token for seal in seals if seal.first_token >= 0}
        if len(tokens) > 1:
            return self._fail(Reason.CORRUPT, f"the peers disagree on the first token: {sorted(tokens)}", now)
        self.first_token = tokens.pop() if tokens else -1
        self._committed = True
        self._reported = True
        commits: list[Effect] = [
            Tell(
                peer,
                Commit(
                    transfer_id=self.wanted.transfer_id,
                    generation=self.generation,
                    chunks=seal.chunks,
                    raw_bytes=seal.raw_bytes,
                    wire_bytes=seal.wire_bytes,
                    digest=seal.digest,
                ),
            )
            for peer, seal in zip(self._peers, seals, strict=True)
        ]
        return [*commits, Finished(None, "")]

    def _fail(self, reason: Reason, message: str, now: float, final: bool = False) -> list[Effect]:
        """Give up this generation; `_settle` reports or tries again once the agent has given back its slots."""
        text = message[:MAX_TEXT]
        self._failure = Finished(reason, text)
        self._failed_at = now
        self._retry = not final and may_retry(reason, self.generation, self.wanted.retries)
        aborts: list[Effect] = [
            Tell(
                peer,
                Abort(
                    transfer_id=self.wanted.transfer_id, generation=self.generation, reason=reason.value, message=text
                ),
            )
            for peer, progress in self._peers.items()
            if progress.state is not PeerState.CONNECTING
        ]
        return [*aborts, *self._settle(now)]

    def _settle(self, now: float) -> list[Effect]:
        if self._failure is None or self._reported:
            return []
        late = now - self._failed_at >= GRACE_SECONDS
        if self._lent and not late:
            return []
        if self._retry and not self._lent and now < self.wanted.deadline:
            self._failure = None
            self._retry = False
            self.generation += 1
            self._restart()
            return self.start()
        self._reported = True
        return [self._failure]
