"""Ring messages as packets: a msgpack array of messages with type tags, checked against the schema, bounded in size.

Several messages share a packet because a packet costs a system call on each side and wakes the reader up: with one
message each, that was a good part of what a chunk cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from kvferry_runtime.errors import RingError
from kvferry_runtime.ring.messages import MAX_BATCH, MAX_PACKET_BYTES, FromAgent, FromSidecar, RingMessage

_HEAD_BYTES = 3
"""Of an array with up to 65,535 items."""
MAX_MESSAGE_BYTES = MAX_PACKET_BYTES - _HEAD_BYTES

_ENCODER = msgspec.msgpack.Encoder()
_SOME = Meta(min_length=1, max_length=MAX_BATCH)
_FROM_AGENT = msgspec.msgpack.Decoder(Annotated[list[FromAgent], _SOME])
_FROM_SIDECAR = msgspec.msgpack.Decoder(Annotated[list[FromSidecar], _SOME])


def encode_message(message: RingMessage) -> bytes:
    """One item of a packet. Raises RingError if no packet has room for it."""
    item = _ENCODER.encode(message)
    if len(item) > MAX_MESSAGE_BYTES:
        raise RingError(f"{type(message).__name__} has {len(item)} bytes, {MAX_MESSAGE_BYTES} are possible")
    return item


def packet_of(items: Sequence[bytes]) -> bytes:
    """A packet of encoded messages. The caller has seen to it that there are at most `MAX_BATCH` and that they fit."""
    return b"\xdc" + len(items).to_bytes(2, "big") + b"".join(items)


def encode(*messages: RingMessage) -> bytes:
    """A packet of these few messages. Raises RingError if one of them is too large for a packet of its own."""
    return packet_of([encode_message(message) for message in messages])


def check_from_agent(message: FromAgent) -> None:
    """Raises RingError if the sidecar would refuse this message: its schema bounds are checked by the reader only."""
    decode_from_agent(encode(message))


def decode_from_agent(packet: bytes) -> list[FromAgent]:
    """Raises RingError: too large, no msgpack, unknown message, or a field out of bounds."""
    try:
        messages: list[FromAgent] = _FROM_AGENT.decode(_bounded(packet))
    except msgspec.MsgspecError as error:
        raise RingError(f"packet of the agent cannot be read: {error}") from error
    return messages


def decode_from_sidecar(packet: bytes) -> list[FromSidecar]:
    """Raises RingError: too large, no msgpack, unknown message, or a field out of bounds."""
    try:
        messages: list[FromSidecar] = _FROM_SIDECAR.decode(_bounded(packet))
    except msgspec.MsgspecError as error:
        raise RingError(f"packet of the sidecar cannot be read: {error}") from error
    return messages


def _bounded(packet: bytes) -> bytes:
    if len(packet) > MAX_PACKET_BYTES:
        raise RingError(f"packet of more than {MAX_PACKET_BYTES} bytes")
    return packet
