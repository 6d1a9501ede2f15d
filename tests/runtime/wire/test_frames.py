"""Framing: what was put in comes out, however the stream is cut; nothing else does, and nothing large is kept."""

from __future__ import annotations

import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.errors import FrameError
from kvferry_runtime.wire.frames import HEADER_BYTES, MAX_CONTROL_BYTES, FrameBuffer, encode_frame


def payloads_of(buffer: FrameBuffer, data: bytes, limit: int = 1024) -> list[bytes]:
    """All that `data` completes."""
    buffer.feed(data)
    return list(iter(lambda: buffer.take(limit), None))


@given(st.lists(st.binary(max_size=300), max_size=6), st.data())
def test_any_cut_of_the_stream_gives_the_same_payloads(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, payloads))
    buffer, found, start = FrameBuffer(), [], 0
    while start < len(stream):
        stop = data.draw(st.integers(start + 1, len(stream)))
        found += payloads_of(buffer, stream[start:stop])
        start = stop
    assert found == payloads
    assert buffer.buffered == buffer.awaited == 0


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"a": 1}),
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<4sHHI", b"KVFC", 2, 0, 1),
        struct.pack("<4sHHI", b"KVFC", 1, 1, 1),
        struct.pack("<4sHHI", b"KVFC", 1, 0, 1025),
        struct.pack("<4sHHI", b"KVFC", 1, 0, 2**32 - 1),
    ],
)
def test_what_is_no_frame_is_refused_at_its_header(data: bytes) -> None:
    buffer = FrameBuffer()
    with pytest.raises(FrameError):
        payloads_of(buffer, data.ljust(HEADER_BYTES, b"\0"))
    assert buffer.buffered == 0
    with pytest.raises(FrameError):
        payloads_of(buffer, encode_frame(b"good"))
    assert buffer.buffered == 0


@given(st.binary(max_size=200))
def test_random_bytes_wait_for_a_header_or_fail(data: bytes) -> None:
    buffer = FrameBuffer()
    try:
        assert payloads_of(buffer, data, limit=64) == []
    except FrameError:
        assert buffer.buffered == 0
    assert buffer.buffered < HEADER_BYTES


def test_each_payload_has_the_limit_of_its_asker() -> None:
    buffer = FrameBuffer()
    buffer.feed(encode_frame(b"four") + encode_frame(b"five!"))
    assert buffer.take(4) == b"four"
    assert buffer.take(5) == b"five!"
    buffer.feed(encode_frame(b"five!"))
    with pytest.raises(FrameError, match="5 bytes; at most 4"):
        buffer.take(4)


def test_too_large_a_payload_is_not_sent() -> None:
    encode_frame(bytes(MAX_CONTROL_BYTES))
    with pytest.raises(FrameError, match=str(MAX_CONTROL_BYTES)):
        encode_frame(bytes(MAX_CONTROL_BYTES + 1))
