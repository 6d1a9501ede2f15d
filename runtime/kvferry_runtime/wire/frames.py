"""Framing of control payloads on a byte stream.

Byte by byte, little-endian: magic "KVFC", u16 version, u16 zero, u32 length of the payload, payload. A frame is judged
by its first twelve bytes: what is no frame of ours, or is longer than the limit, is refused before a single byte of
payload is kept.
"""

from __future__ import annotations

import struct

from kvferry_runtime.errors import FrameError

MAGIC = b"KVFC"
VERSION = 1
HEADER_BYTES = 12
MAX_CONTROL_BYTES = 1 << 20
"""Of one payload, once the peer has proved the shared key."""
MAX_UNAUTHENTICATED_BYTES = 16 << 10
"""Of one payload before that."""

_HEADER = struct.Struct("<4sHHI")
assert _HEADER.size == HEADER_BYTES


def encode_frame(payload: bytes) -> bytes:
    """`payload` with its header in front.

    Raises:
        FrameError: larger than `MAX_CONTROL_BYTES`.
    """
    if len(payload) > MAX_CONTROL_BYTES:
        raise FrameError(f"control payload of {len(payload)} bytes; at most {MAX_CONTROL_BYTES} are allowed")
    return _HEADER.pack(MAGIC, VERSION, 0, len(payload)) + payload


def payload_length(header: bytes | bytearray | memoryview, limit: int) -> int:
    """Length in bytes of the payload behind these twelve bytes.

    Raises:
        FrameError: no header of ours, another version, or a payload larger than `limit` bytes.
    """
    magic, version, zero, length = _HEADER.unpack(header)
    if magic != MAGIC or zero:
        raise FrameError(f"not a frame: it starts with {bytes(header[:8]).hex()}")
    if version != VERSION:
        raise FrameError(f"frame has version {version}, this side speaks {VERSION}")
    if length > limit:
        raise FrameError(f"frame announces {length} bytes; at most {limit} are allowed")
    return int(length)


class FrameDecoder:
    """Takes a byte stream apart. After a `FrameError` it takes nothing more: the stream has lost its place.

    It keeps less than one frame of at most `limit` bytes (settable at any time, for the next header).
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._length: int | None = None
        self._broken = False

    @property
    def buffered(self) -> int:
        """Bytes kept now."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """The payloads completed by `data`, in order.

        Raises:
            FrameError: no frame of ours, or larger than the limit.
        """
        if self._broken:
            raise FrameError("the stream is broken since an earlier frame")
        self._buffer += data
        payloads: list[bytes] = []
        try:
            while (payload := self._next()) is not None:
                payloads.append(payload)
        except FrameError:
            self._broken = True
            self._buffer = bytearray()
            raise
        return payloads

    def _next(self) -> bytes | None:
        if self._length is None:
            if len(self._buffer) < HEADER_BYTES:
                return None
            self._length = payload_length(self._buffer[:HEADER_BYTES], self.limit)
            del self._buffer[:HEADER_BYTES]
        if len(self._buffer) < self._length:
            return None
        payload = bytes(self._buffer[: self._length])
        del self._buffer[: self._length]
        self._length = None
        return payload
