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


class FrameBuffer:
    """A byte stream that is taken apart payload by payload, each when it is asked for.

    After a `FrameError` it takes nothing more and keeps nothing: the stream has lost its place.
    """

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._length: int | None = None
        self._broken: FrameError | None = None

    @property
    def buffered(self) -> int:
        """Bytes kept now."""
        return len(self._bytes)

    @property
    def awaited(self) -> int:
        """Bytes of the payload whose header was read and which is not all there yet; else 0."""
        return self._length or 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """What arrived next."""
        if self._broken is None:
            self._bytes += data

    def take(self, limit: int) -> bytes | None:
        """The next payload, None if it is not all there yet.

        Raises:
            FrameError: no frame of ours, or larger than `limit` bytes, now or before.
        """
        if self._broken is not None:
            raise self._broken
        try:
            if self._length is None and len(self._bytes) >= HEADER_BYTES:
                self._length = payload_length(self._bytes[:HEADER_BYTES], limit)
                del self._bytes[:HEADER_BYTES]
        except FrameError as error:
            self._broken = error
            self._bytes.clear()
            raise
        if self._length is None or len(self._bytes) < self._length:
            return None
        payload = bytes(self._bytes[: self._length])
        del self._bytes[: self._length]
        self._length = None
        return payload

    def clear(self) -> None:
        """Drop what nobody will ask for any more."""
        self._bytes.clear()
