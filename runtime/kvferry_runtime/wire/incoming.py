"""What one peer has sent of an incoming transfer, and whether it is all that its SEAL says. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvferry_runtime.wire.data import DataHeader
from kvferry_runtime.wire.messages import Seal
from kvferry_runtime.wire.outgoing import digest_of

MAX_SEQUENCES = 4096
"""In one NACK."""


class PeerState(StrEnum):
    CONNECTING = "connecting"
    RESERVED = "reserved"
    RECEIVING = "receiving"
    SEALED = "sealed"


class Arrival(StrEnum):
    """Of one chunk."""

    LENT = "lent"
    IN_PLACE = "in_place"
    BAD = "bad"


@dataclass(slots=True)
class Received:
    header: DataHeader
    arrival: Arrival

    def same_place(self, header: DataHeader) -> bool:
        ours = self.header
        return (ours.layer, ours.layer_count, ours.token_start, ours.token_stop) == (
            header.layer,
            header.layer_count,
            header.token_start,
            header.token_stop,
        )


class PeerProgress:
    """One peer, one generation."""

    def __init__(self) -> None:
        self.state = PeerState.CONNECTING
        self.layers = range(0)
        """That it will send, once it has said so."""
        self.seal: Seal | None = None
        self.received: dict[int, Received] = {}
        self.nacked: set[int] = set()
        self.chunks = 0
        self.raw_bytes = 0
        self.wire_bytes = 0
        """Of the chunks that are in place, like the two before."""
        self.heard_at = 0.0

    @property
    def in_place(self) -> bool:
        """As many chunks as were sealed are in place."""
        seal = self.seal
        return seal is not None and self.chunks == seal.chunks == len(self.received)

    def missing(self) -> list[int]:
        """Sequences that the peer sealed and that never came."""
        chunks = 0 if self.seal is None else self.seal.chunks
        return [sequence for sequence in range(chunks) if sequence not in self.received]

    def placed(self, sequence: int) -> None:
        """This chunk is in place."""
        received = self.received[sequence]
        received.arrival = Arrival.IN_PLACE
        self.chunks += 1
        self.raw_bytes += received.header.raw_bytes
        self.wire_bytes += received.header.wire_bytes

    def contradiction(self) -> str | None:
        """How what is in place differs from the SEAL; None if it does not. Only when `in_place`."""
        assert self.seal is not None
        headers = [self.received[sequence].header for sequence in sorted(self.received)]
        if sorted(self.received) != list(range(self.seal.chunks)):
            return f"sequences up to {max(self.received)} among {self.seal.chunks} chunks"
        digest = digest_of([header.digest for header in headers])
        ours = (self.raw_bytes, self.wire_bytes, digest)
        theirs = (self.seal.raw_bytes, self.seal.wire_bytes, self.seal.digest)
        if ours != theirs:
            return f"raw bytes, wire bytes, digest {ours} arrived, {theirs} were sealed"
        tokens: dict[int, int] = {}
        chunks: dict[int, int] = {}
        for header in headers:
            for layer in range(header.layer, header.layer + header.layer_count):
                tokens[layer] = tokens.get(layer, 0) + header.token_stop - header.token_start
                chunks[layer] = chunks.get(layer, 0) + 1
        arrived = {layer: (tokens[layer], chunks[layer]) for layer in tokens}
        sealed = {item.layer: (item.tokens, item.chunks) for item in self.seal.layers}
        if arrived != sealed:
            layer = min(key for key in arrived.keys() | sealed.keys() if arrived.get(key) != sealed.get(key))
            return f"layer {layer}: (tokens, chunks) {arrived.get(layer)} arrived, {sealed.get(layer)} were sealed"
        return None
