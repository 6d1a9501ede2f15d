"""What a sender keeps of its transfer: what was offered, its chunks, the slots it holds. Pure."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest

import xxhash

from kvferry_runtime.errors import Reason
from kvferry_runtime.layout import layers_text
from kvferry_runtime.wire.credits import SendCredits
from kvferry_runtime.wire.messages import MAX_TEXT, Deny, Open, Reserve, Seal, SealLayer

MAX_CHUNKS = 1 << 18
"""Of one transfer; 256 GiB in chunks of 1 MiB."""


class SendState(StrEnum):
    OFFERED = "offered"
    OPEN = "open"
    STREAMING = "streaming"
    SEALED = "sealed"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Offered:
    """What the engine offered. layers: global numbers. tokens: of the whole prompt.

    deadline: absolute, in seconds of the caller's clock. retries: generations that may follow the first one.
    """

    transfer_id: str
    layers: range
    tokens: int
    estimated_bytes: int
    layerwise: bool
    deadline: float
    retries: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the engine says after its forward pass."""

    chunks: int
    layers: tuple[SealLayer, ...]
    first_token: int

    def contradiction(self, offer: Offered, announced: int) -> str:
        """How it differs from what was offered, empty if it does not. announced: chunks that were."""
        if self.chunks != announced:
            return f"sealed with {self.chunks} of {announced} chunks"
        sealed = [(item.layer, item.tokens) for item in self.layers]
        offered = [(layer, offer.tokens) for layer in offer.layers]
        for ours, theirs in zip_longest(offered, sealed):
            if ours != theirs:
                return f"(layer, tokens) {theirs} was sealed, {ours} was offered"
        return ""


class Work(StrEnum):
    """What a transfer could do now, given a credit."""

    FILL = "fill"
    """Have the next chunk filled; needs a free slot too."""
    RESEND = "resend"
    """Send a chunk again out of the slot that it still holds."""


class ChunkState(StrEnum):
    ANNOUNCED = "announced"
    LENT = "lent"
    OUT = "out"
    ACKED = "acked"


@dataclass(slots=True)
class Chunk:
    raw_bytes: int
    wire_bytes: int = 0
    digest: int = 0
    state: ChunkState = ChunkState.ANNOUNCED
    slot: int = -1
    resent: bool = False


@dataclass(slots=True)
class Hold:
    """A slot that this transfer has. chunk: None once nothing more will be sent out of it.

    number: credit number under which it was sent last.
    """

    chunk: Chunk | None
    credits: SendCredits
    sequence: int
    generation: int
    number: int = -1
    lent: bool = True
    in_flight: bool = False

    @property
    def idle(self) -> bool:
        """Nobody needs it any more."""
        return self.chunk is None and not self.lent and not self.in_flight


@dataclass(slots=True)
class SendProgress:
    """Of this generation. Totals over the chunks that went out; what must be sent again.

    following: the chunk that is handed out next. It and all behind it are waiting.
    """

    chunks: int = 0
    raw_bytes: int = 0
    wire_bytes: int = 0
    resent: int = 0
    following: int = 0
    resend: deque[int] = field(default_factory=deque)


def open_of(offer: Offered, generation: int, codec: str, layerwise: bool) -> Open:
    """What P answers to a RESERVE that it serves."""
    return Open(
        transfer_id=offer.transfer_id,
        generation=generation,
        first_layer=offer.layers.start,
        layer_count=len(offer.layers),
        estimated_bytes=offer.estimated_bytes,
        codec=codec,
        layerwise=layerwise,
    )


def misfit(offer: Offered, message: Reserve, codec: str) -> str:
    """What of this RESERVE does not fit to what is offered, empty if all does. codec: with which P would begin."""
    if (message.token_start, message.token_stop) != (0, offer.tokens):
        asked = f"{message.token_start} to {message.token_stop}"
        return f"tokens {asked} are wanted, the whole prompt of {offer.tokens} is offered"
    if not (message.layers.start <= offer.layers.start and offer.layers.stop <= message.layers.stop):
        return f"{layers_text(message.layers)} are wanted, {layers_text(offer.layers)} are offered"
    if not {codec, "none"} <= set(message.codecs):
        return f"codec: {codec!r} and 'none' are sent, {sorted(message.codecs)} can be decoded"
    return ""


def seal_of(offer: Offered, generation: int, manifest: Manifest, progress: SendProgress, digest: int) -> Seal:
    """What P says when all chunks of the manifest are out."""
    return Seal(
        transfer_id=offer.transfer_id,
        generation=generation,
        chunks=progress.chunks,
        raw_bytes=progress.raw_bytes,
        wire_bytes=progress.wire_bytes,
        digest=digest,
        layers=list(manifest.layers),
        first_token=manifest.first_token,
    )


def deny(message: Reserve, reason: Reason, text: str) -> Deny:
    """The answer to a RESERVE that cannot be served."""
    return Deny(
        transfer_id=message.transfer_id, generation=message.generation, reason=reason.value, message=text[:MAX_TEXT]
    )


def digest_of(digests: Sequence[int]) -> int:
    """xxh3-64 over 64-bit digests, each little-endian, in order."""
    return int(xxhash.xxh3_64_intdigest(struct.pack(f"<{len(digests)}Q", *digests)))
