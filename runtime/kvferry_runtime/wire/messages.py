"""Control messages between two sidecars, as fixed schemas with limits (msgpack and a checksum; no pickle).

D dials P. Order of a session: HELLO (D) → HELLO_ACK (P, proves the key) → PROOF (D, proves the key, data address) →
READY (P, data address) → then RESERVE, OPEN, DENY, CREDIT, SEAL, COMMIT, NACK, ABORT, ABORT_ACK, PING, GOAWAY.
REJECT may stand in place of any of the first four and ends the connection. Proof of the key:
HMAC-SHA256(key, label + SHA-256(HELLO frame) + SHA-256(HELLO_ACK frame without its proof)), label "kvferry-P" or
"kvferry-D"; so neither side can be replayed or reflected, and nothing of the key is sent.

DATA travels on the data endpoint, not here: one message for each credit, tag = (session << 32) | credit number.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kvferry_runtime.layout import MAX_LAYERS
from kvferry_runtime.wire import payload

PROTOCOL_VERSION = 3
"""History: 1, the first; 2, RESERVE tells from where decode's engine can go on, and P may seal a shorter range;
3, RESERVE and OPEN name layers."""

Text = Annotated[str, Meta(max_length=256)]
MAX_TEXT = 1024
"""Characters of a message for people."""
LongText = Annotated[str, Meta(max_length=MAX_TEXT)]
TransferId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Count = Annotated[int, Meta(ge=0, le=2**31)]
Size = Annotated[int, Meta(ge=0, le=2**48)]
LayerCount = Annotated[int, Meta(ge=1, le=MAX_LAYERS)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
U64 = Annotated[int, Meta(ge=0)]
"""msgpack itself ends at 2^64 - 1."""
Nonce = Annotated[bytes, Meta(min_length=16, max_length=16)]
Address = Annotated[bytes, Meta(max_length=8192)]


class Message(msgspec.Struct, frozen=True, tag_field="t", forbid_unknown_fields=True):
    """Base of all control messages."""


class Hello(Message, frozen=True, tag="HELLO"):
    """boot_id: of this process. fingerprint: parts in clear (kvferry_contract.fingerprint). codecs: for D to decode."""

    version: Count
    boot_id: Nonce
    nonce: Nonce
    group: Text
    fingerprint: Annotated[dict[Text, LongText], Meta(max_length=64)]
    codecs: Annotated[list[Text], Meta(max_length=32)]
    chunk_bytes: Size
    slots: Count
    layerwise: bool


class HelloAck(Message, frozen=True, tag="HELLO_ACK"):
    version: Count
    boot_id: Nonce
    nonce: Nonce
    group: Text
    session: Annotated[int, Meta(ge=1, lt=2**32)]
    fingerprint: Annotated[dict[Text, LongText], Meta(max_length=64)]
    codecs: Annotated[list[Text], Meta(max_length=32)]
    chunk_bytes: Size
    slots: Count
    layerwise: bool
    proof: Digest


class Proof(Message, frozen=True, tag="PROOF"):
    proof: Digest
    data_address: Address


class Ready(Message, frozen=True, tag="READY"):
    data_address: Address


class Reject(Message, frozen=True, tag="REJECT"):
    """reason: a value of `errors.Reason`. message: names the field that differs."""

    reason: Text
    message: LongText
    retriable: bool


class Reserve(Message, frozen=True, tag="RESERVE"):
    """first_layer, layer_count: those that D holds, global numbers.

    resume_tokens: P may seal a shorter range, of a multiple of so many tokens of every layer, as D's engine can compute
    the rest. 0: all or nothing.
    """

    transfer_id: TransferId
    generation: Count
    first_layer: Count
    layer_count: LayerCount
    token_start: Count
    token_stop: Count
    codecs: Annotated[list[Text], Meta(max_length=32)]
    deadline_ms: Count
    resume_tokens: Count

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.first_layer + self.layer_count)


class Open(Message, frozen=True, tag="OPEN"):
    """first_layer, layer_count: those that P will send, some or all of those that D holds."""

    transfer_id: TransferId
    generation: Count
    first_layer: Count
    layer_count: LayerCount
    estimated_bytes: Size
    codec: Text
    layerwise: bool

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.first_layer + self.layer_count)


class Deny(Message, frozen=True, tag="DENY"):
    transfer_id: TransferId
    generation: Count
    reason: Text
    message: LongText


class Ack(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One chunk that is in place at D: P may reuse its slot."""

    transfer_id: TransferId
    generation: Count
    sequence: Count


class Credit(Message, frozen=True, tag="CREDIT"):
    """limit: P may send messages with credit numbers below this (cumulative, from 0). acks: chunks in place.

    unread: numbers of messages whose header could not be read, so that D cannot tell by NACK which chunk it misses.
    """

    limit: Count
    acks: Annotated[list[Ack], Meta(max_length=256)]
    unread: Annotated[list[Count], Meta(max_length=256)]


class SealLayer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """tokens: how many of the range were sent for this layer. chunks: messages that held part of it."""

    layer: Count
    tokens: Count
    chunks: Count


class Seal(Message, frozen=True, tag="SEAL"):
    """Everything of this generation was handed to the network; much of it may arrive later.

    digest: xxh3-64 over the chunk digests (u64 LE, by sequence).
    """

    transfer_id: TransferId
    generation: Count
    chunks: Count
    raw_bytes: Size
    wire_bytes: Size
    digest: U64
    layers: Annotated[list[SealLayer], Meta(max_length=1024)]
    first_token: Annotated[int, Meta(ge=-1, le=2**31)]


class Commit(Message, frozen=True, tag="COMMIT"):
    transfer_id: TransferId
    generation: Count
    chunks: Count
    raw_bytes: Size
    wire_bytes: Size
    digest: U64


class Nack(Message, frozen=True, tag="NACK"):
    """Chunks that are missing or bad, by sequence. P sends each once more."""

    transfer_id: TransferId
    generation: Count
    sequences: Annotated[list[Count], Meta(min_length=1, max_length=4096)]


class Abort(Message, frozen=True, tag="ABORT"):
    transfer_id: TransferId
    generation: Count
    reason: Text
    message: LongText


class AbortAck(Message, frozen=True, tag="ABORT_ACK"):
    transfer_id: TransferId
    generation: Count


class Ping(Message, frozen=True, tag="PING"):
    """engine_age_ms: since the engine's loop was last seen alive, -1 without an engine.

    sent: data messages that this side has handed to the network in this session.
    """

    boot_id: Nonce
    sequence: Count
    engine_age_ms: Annotated[int, Meta(ge=-1, le=2**40)]
    sent: Count


class GoAway(Message, frozen=True, tag="GOAWAY"):
    """No new RESERVE; open ones may finish within the deadline."""

    deadline_ms: Count


AnyMessage = (
    Hello | HelloAck | Proof | Ready | Reject | Reserve | Open | Deny | Credit | Seal | Commit | Nack | Abort | AbortAck
    | Ping | GoAway
)  # fmt: skip

_DECODER: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """One control payload."""
    return payload.pack(message)


def decode(data: bytes) -> AnyMessage:
    """Read what `encode` wrote.

    Raises:
        FrameError: anything else: other bytes, an unknown message or field, a value outside its limits.
    """
    return payload.unpack(data, _DECODER, "control message")
