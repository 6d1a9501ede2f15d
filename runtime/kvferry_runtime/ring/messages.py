"""Messages between agent (engine process) and sidecar over the control socket of the ring.

The socket is a Unix SEQPACKET: up to `MAX_BATCH` messages a packet, msgpack, at most `MAX_PACKET_BYTES` in all. The
sidecar owns every slot.

Life of a slot on prefill: free → `Fill` lends it to the agent, who writes header and payload → `Filled` gives
it back → sent → free when the peer acknowledged it. On decode: posted as a receive → arrived → `Arrived` lends it →
`Consumed` gives it back → posted again. A slot that is lent when the agent's socket closes is free again, since
nothing writes it any more: an agent closes its socket only after its copies have ended, those that a device has queued
too, and attaches again only after that.

Where the sidecar closes the socket first, copies may still go on in slots that are free again. That is safe. On
prefill slots are only ever lent, and there is nobody to lend them to before the agent attaches again. On decode, where
they are posted as receives at once, an agent only reads slots, and what a copy reads of the next chunk goes into the
blocks of a load that has failed, which the engine gets back only after the copy.

For each `Offer` there is exactly one `Sent`, for each `Fetch` exactly one `Loaded` or `LoadFailed`; after it, neither
side names the transfer again, and the agent reads or writes none of its blocks.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kvferry_runtime.layout import MAX_LAYERS

PROTOCOL_VERSION = 3
"""History: 1, one message a packet; 2, several, and a choice of method for each chunk; 3, offers name their layers."""
MAX_PACKET_BYTES = 64 * 1024
MAX_BATCH = 64
"""Messages in one packet, and chunks in one `ChunksReady`."""

Text = Annotated[str, Meta(max_length=256)]
LongText = Annotated[str, Meta(max_length=1024)]
TransferId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Count = Annotated[int, Meta(ge=0, le=2**31)]
Size = Annotated[int, Meta(ge=0, le=2**48)]
Rate = Annotated[float, Meta(gt=0)]
U64 = Annotated[int, Meta(ge=0)]
"""msgpack itself ends at 2^64 - 1."""
Nanoseconds = Annotated[int, Meta(ge=0)]
"""CLOCK_MONOTONIC of this machine, which both containers of a pod share; never sent to a peer."""


class RingMessage(msgspec.Struct, frozen=True, tag_field="t", forbid_unknown_fields=True):
    """Base of all ring messages."""


# ---- agent → sidecar ----


class Attach(RingMessage, frozen=True, tag="attach"):
    """First message. fingerprint: what both sides must share. codecs: what this agent can encode and decode."""

    version: Count
    engine_boot_id: Text
    role: Text
    fingerprint: Annotated[dict[Text, LongText], Meta(max_length=64)]
    first_layer: Count
    layer_count: Count
    total_layers: Count
    codecs: Annotated[list[Text], Meta(max_length=32)]

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.first_layer + self.layer_count)


class Beat(RingMessage, frozen=True, tag="beat"):
    """Every second. age_ms: since the engine's own loop last turned (not the agent's thread)."""

    age_ms: Size


class OfferedMethod(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A method that may be used, as this engine measured it: see `auto.speeds.MethodSpeed`."""

    method: Text
    ratio: Rate
    encode: Rate
    decode: Rate


class Offer(RingMessage, frozen=True, tag="offer"):
    """Prefill: this transfer's KV will become ready here. tokens: of the whole prompt.

    first_layer, layer_count: those that are offered, global numbers; a prompt has as many offers as decode has stages
    that share layers with this one, each with an id of its own.

    codec: a method, or "auto": then the sidecar chooses among `methods` (least lossy first) for each chunk. layerwise:
    None if the sidecar is to choose that. compute_us, tail_us: expected of the forward pass from the first of these
    layers on, and of that after the last of them; 0 if nothing was measured. Where there is something to choose,
    `Chosen` follows when the transfer is bound to a peer.
    """

    transfer_id: TransferId
    first_layer: Count
    layer_count: Annotated[int, Meta(ge=1, le=MAX_LAYERS)]
    tokens: Count
    estimated_bytes: Size
    codec: Text
    layerwise: bool | None
    deadline_ms: Count
    methods: Annotated[list[OfferedMethod], Meta(max_length=32)] = []
    compute_us: Size = 0
    tail_us: Size = 0

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.first_layer + self.layer_count)


class ReadyChunk(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A chunk that the agent could fill now. Sequence numbers are given out by the agent, from 0, without gaps."""

    sequence: Count
    raw_bytes: Size


class ManifestLayer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    layer: Count
    tokens: Count
    chunks: Count


class Cut(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A place at which the transfer could end: the first `chunks` chunks hold `tokens` tokens of every layer."""

    tokens: Count
    chunks: Count
    layers: Annotated[list[ManifestLayer], Meta(max_length=1024)]


class ChunksReady(RingMessage, frozen=True, tag="ready"):
    """cut: behind the last of these chunks, where `Chosen` asked for such places."""

    transfer_id: TransferId
    chunks: Annotated[list[ReadyChunk], Meta(max_length=MAX_BATCH)]
    cut: Cut | None = None


class Check(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What decoding a chunk here gave: the error of `codec.error`. failed: it was too large, so the chunk went exact,
    and the method is not used any longer for its layers."""

    method: Text
    relative_error: Annotated[float, Meta(ge=0)]
    failed: bool


class Filled(RingMessage, frozen=True, tag="filled"):
    """Answer to `Fill`: the slot holds header and payload. check: None where none was made.

    wire_bytes: of the payload. wire_bytes 0: nothing was written, because the transfer is over for this agent (a
    `Cancel` crossed the `Fill`); the slot is free again and the chunk must not be sent.
    """

    transfer_id: TransferId
    slot: Count
    sequence: Count
    raw_bytes: Size
    wire_bytes: Size
    digest: U64
    check: Check | None = None


class SealOffer(RingMessage, frozen=True, tag="seal"):
    """The forward pass is over and every chunk was announced. first_token: -1 if unknown."""

    transfer_id: TransferId
    chunks: Count
    layers: Annotated[list[ManifestLayer], Meta(max_length=1024)]
    first_token: Annotated[int, Meta(ge=-1, le=2**31)]
    compute_started_ns: Nanoseconds
    compute_finished_ns: Nanoseconds


class Fetch(RingMessage, frozen=True, tag="fetch"):
    """Decode: load this range of the prompt from these peers, which together hold every layer that is held here.

    resume_tokens: a shorter range will do, of a multiple of so many tokens; the engine computes the rest. 0: it cannot.
    """

    transfer_id: TransferId
    peers: Annotated[list[Text], Meta(min_length=1, max_length=64)]
    token_start: Count
    token_stop: Count
    deadline_ms: Count
    resume_tokens: Count = 0


class Consumed(RingMessage, frozen=True, tag="consumed"):
    """The slot was read. ok: its digest fitted and its rows were written."""

    transfer_id: TransferId
    slot: Count
    sequence: Count
    ok: bool


class Cancel(RingMessage, frozen=True, tag="cancel"):
    """The engine no longer wants this transfer; it is still answered by `Sent` or `LoadFailed`."""

    transfer_id: TransferId
    reason: Text


# ---- sidecar → agent ----


class Attached(RingMessage, frozen=True, tag="attached"):
    version: Count
    sidecar_boot_id: Text
    slots: Count
    chunk_bytes: Size


class Alive(RingMessage, frozen=True, tag="alive"):
    """Answer to each `Beat`: the sidecar's loop turns."""


class Refused(RingMessage, frozen=True, tag="refused"):
    message: LongText


class Chosen(RingMessage, frozen=True, tag="chosen"):
    """Prefill: how to cut an offer into chunks. May come again with another generation, when it is cut already.

    exact_apart: tokens that lossy methods must leave alone get chunks of their own. band_tokens: all layers of so many
    tokens come first, then those of the next ones, with a `Cut` in between; 0: as is best otherwise.
    """

    transfer_id: TransferId
    layerwise: bool
    exact_apart: bool
    band_tokens: Count = 0


class Fill(RingMessage, frozen=True, tag="fill"):
    """Write this chunk into this slot. A chunk may be asked for again in another generation (failurePolicy Retry).

    codec: the method to use where a chunk may have any; empty: the one that was offered.
    """

    transfer_id: TransferId
    slot: Count
    sequence: Count
    generation: Count
    codec: Text = ""


class Sent(RingMessage, frozen=True, tag="sent"):
    """Prefill: the transfer is over and its blocks are the engine's again. reason: empty when committed."""

    transfer_id: TransferId
    committed: bool
    reason: Text
    message: LongText


class Arrived(RingMessage, frozen=True, tag="arrived"):
    """Decode: this slot holds a chunk of this transfer; header checked, payload not."""

    transfer_id: TransferId
    slot: Count


class Loaded(RingMessage, frozen=True, tag="loaded"):
    """Decode: every layer and token of the range is in place and acknowledged, or of its first `tokens` tokens."""

    transfer_id: TransferId
    first_token: Annotated[int, Meta(ge=-1, le=2**31)]
    chunks: Count
    raw_bytes: Size
    wire_bytes: Size
    tokens: Count | None = None


class LoadFailed(RingMessage, frozen=True, tag="failed"):
    """Decode: what arrived must not be used. reason: a value of `errors.Reason`."""

    transfer_id: TransferId
    reason: Text
    message: LongText


FromAgent = Attach | Beat | Offer | ChunksReady | Filled | SealOffer | Fetch | Consumed | Cancel
FromSidecar = Attached | Refused | Alive | Chosen | Fill | Sent | Arrived | Loaded | LoadFailed
