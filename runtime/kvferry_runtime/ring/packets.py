"""Ring messages as packets: msgpack with a type tag, checked against the schema and bounded in size."""

from __future__ import annotations

import msgspec

from kvferry_runtime.errors import RingError
from kvferry_runtime.ring.messages import MAX_PACKET_BYTES, FromAgent, FromSidecar, RingMessage

_ENCODER = msgspec.msgpack.Encoder()
_FROM_AGENT = msgspec.msgpack.Decoder(FromAgent)
_FROM_SIDECAR = msgspec.msgpack.Decoder(FromSidecar)


def encode(message: RingMessage) -> bytes:
    """Raises RingError if the packet would be larger than `MAX_PACKET_BYTES`."""
    packet = _ENCODER.encode(message)
    if len(packet) > MAX_PACKET_BYTES:
        raise RingError(f"{type(message).__name__} has {len(packet)} bytes, {MAX_PACKET_BYTES} are possible")
    return packet


def check_from_agent(message: FromAgent) -> None:
    """Raises RingError if the sidecar would refuse this message: its schema bounds are checked by the reader only."""
    decode_from_agent(encode(message))


def decode_from_agent(packet: bytes) -> FromAgent:
    """Raises RingError: too large, no msgpack, unknown message, or a field out of bounds."""
    try:
        message: FromAgent = _FROM_AGENT.decode(_bounded(packet))
    except msgspec.MsgspecError as error:
        raise RingError(f"packet of the agent cannot be read: {error}") from error
    return message


def decode_from_sidecar(packet: bytes) -> FromSidecar:
    """Raises RingError: too large, no msgpack, unknown message, or a field out of bounds."""
    try:
        message: FromSidecar = _FROM_SIDECAR.decode(_bounded(packet))
    except msgspec.MsgspecError as error:
        raise RingError(f"packet of the sidecar cannot be read: {error}") from error
    return message


def _bounded(packet: bytes) -> bytes:
    if len(packet) > MAX_PACKET_BYTES:
        raise RingError(f"packet of more than {MAX_PACKET_BYTES} bytes")
    return packet
