"""The header of a chunk: every bit counts."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.errors import FrameError
from kvferry_runtime.layout import KvDtype
from kvferry_runtime.wire.data import HEADER_BYTES, MAX_CHUNK_BYTES, DataHeader

HEADER = DataHeader(
    transfer_id="0123456789abcdef" * 2, generation=1, sequence=2, layer=3, layer_count=4, parts=2, codec=5,
    token_start=6, token_stop=16, head_stop=3, head_dim=64, dtype=KvDtype.BF16, scale_scope=1,
    raw_bytes=4 * 2 * 10 * 3 * 64 * 2, wire_bytes=1234, digest=2**64 - 1,
)  # fmt: skip


def test_round_trip() -> None:
    packed = HEADER.pack()
    assert len(packed) == HEADER_BYTES
    assert DataHeader.unpack(packed + b"payload") == HEADER
    assert HEADER.rows == 4 * 2 * 10 * 3


@given(st.integers(0, HEADER_BYTES * 8 - 1))
def test_any_flipped_bit_is_found(bit: int) -> None:
    packed = bytearray(HEADER.pack())
    packed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        DataHeader.unpack(packed)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        DataHeader.unpack(data)


@pytest.mark.parametrize(
    "change",
    [
        {"layer_count": 0},
        {"layer": 1023},
        {"parts": 3},
        {"token_start": 16},
        {"head_stop": 0},
        {"head_dim": 0},
        {"raw_bytes": 10},
        {"wire_bytes": 0},
        {"wire_bytes": MAX_CHUNK_BYTES + 1},
    ],
)
def test_a_header_that_makes_no_sense_is_refused_though_its_checksum_fits(change: dict[str, int]) -> None:
    with pytest.raises(FrameError):
        DataHeader.unpack(msgspec.structs.replace(HEADER, **change).pack())


@pytest.mark.parametrize(
    ("offset", "value"),
    [(0, b"X"), (4, b"\x02"), (6, b"\x01"), (48, b"\x01"), (54, b"\x04"), (72, b"\x01"), (120, b"\x01")],
)
def test_reserved_fields_and_unknown_kinds_are_refused(offset: int, value: bytes) -> None:
    body = bytearray(HEADER.pack()[: HEADER_BYTES - 4])
    body[offset : offset + 1] = value
    with pytest.raises(FrameError):
        DataHeader.unpack(body + struct.pack("<I", zlib.crc32(body)))
