"""What one control frame carries: a message in msgpack, then its crc32 (u32 little-endian).

A flipped bit could make another valid message, and with it a wrong first token; TCP's own sum is too weak for that.
"""

from __future__ import annotations

import struct
import zlib
from typing import TypeVar

import msgspec

from kvferry_runtime.errors import FrameError

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()
_CRC = struct.Struct("<I")


def pack(message: msgspec.Struct) -> bytes:
    """One control payload."""
    body = _ENCODER.encode(message)
    return body + _CRC.pack(zlib.crc32(body))


def unpack(payload: bytes, decoder: msgspec.msgpack.Decoder[T], what: str) -> T:
    """Read what `pack` wrote. what: such a message is called, for the error.

    Raises:
        FrameError: anything else: other bytes, an unknown message or field, a value outside its limits.
    """
    body, crc = payload[: -_CRC.size], payload[-_CRC.size :]
    if crc != _CRC.pack(zlib.crc32(body)):
        raise FrameError(f"{what} of {len(payload)} bytes: checksum does not fit")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FrameError(f"not a {what}: {error}") from error
