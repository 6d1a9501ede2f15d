"""Chunks of many arrays, and arrays that are no rows: the same rules for every codec."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_pairs import ORACLES
from kv_rows import FLOAT_DTYPES, encoded, outlier_rows
from kvferry_runtime.codec.base import ChunkShape, Codec
from kvferry_runtime.codec.registry import host_codecs
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import KvDtype

HOST = host_codecs()
CODECS = [
    *(pytest.param(codec, id=f"host-{name}") for name, codec in HOST.items()),
    *(pytest.param(oracle, id=f"reference-{name}") for name, oracle in ORACLES.items() if name != "none"),
]
ROWS, WIDTH = 24, 33


def shape_of(dtype: KvDtype) -> ChunkShape:
    """Keys and values of two layers."""
    return ChunkShape(layers=2, parts=2, tokens=ROWS // 12, heads=3, head_dim=WIDTH, dtype=dtype)


SHAPE = shape_of(KvDtype.BF16)


def payload_for(codec: Codec) -> np.ndarray:
    return np.zeros(codec.max_wire_bytes(SHAPE), np.uint8)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, ROWS), max_size=6), sinks=st.lists(st.integers(0, ROWS), max_size=6))
def test_how_rows_are_split_over_arrays_changes_nothing(
    codec: Codec, dtype: KvDtype, cuts: list[int], sinks: list[int]
) -> None:
    whole = outlier_rows(ROWS, WIDTH, dtype)
    shape = shape_of(dtype)
    payload = encoded(codec, [whole], dtype, shape)
    blocks = [block.copy() for block in np.split(whole, sorted(cuts))]
    assert encoded(codec, blocks, dtype, shape) == payload

    expected, pieces = np.zeros_like(whole), [np.zeros_like(block) for block in np.split(whole, sorted(sinks))]
    codec.decode(np.frombuffer(payload, np.uint8), shape, [expected])
    codec.decode(np.frombuffer(payload, np.uint8), shape, pieces)
    assert np.concatenate(pieces).tobytes() == expected.tobytes()


@pytest.mark.parametrize("codec", CODECS)
def test_the_source_stays_and_may_be_read_only(codec: Codec) -> None:
    rows = outlier_rows(ROWS, WIDTH, KvDtype.BF16)
    before = rows.copy()
    payload = encoded(codec, [rows], KvDtype.BF16, SHAPE)
    assert (rows == before).all()
    rows.flags.writeable = False
    assert encoded(codec, [rows], KvDtype.BF16, SHAPE) == payload


BASE = outlier_rows(ROWS * 2, WIDTH * 2, KvDtype.BF16)
MISSHAPEN = {
    "every second row": [BASE[::2, :WIDTH]],
    "cut columns": [BASE[:ROWS, :WIDTH]],
    "transposed": [np.ascontiguousarray(BASE[:WIDTH, :ROWS]).T],
    "reversed": [np.ascontiguousarray(BASE[:ROWS, :WIDTH])[::-1]],
    "one dimension": [np.ascontiguousarray(BASE[:ROWS, :WIDTH]).reshape(-1)],
    "three dimensions": [np.zeros((2, ROWS // 2, WIDTH), np.uint16)],
    "signed": [np.zeros((ROWS, WIDTH), np.int16)],
    "float": [np.zeros((ROWS, WIDTH), np.float16)],
    "wider elements": [np.zeros((ROWS, WIDTH), np.uint32)],
    "big-endian": [np.zeros((ROWS, WIDTH), ">u2")],
    "two widths": [np.zeros((ROWS, WIDTH), np.uint16), np.zeros((ROWS, WIDTH + 1), np.uint16)],
    "unaligned": [np.zeros(ROWS * WIDTH * 2 + 1, np.uint8)[1:].view(np.uint16).reshape(ROWS, WIDTH)],
    "one strided among good ones": [np.zeros((1, WIDTH), np.uint16), BASE[:ROWS, :WIDTH]],
    "too few": [np.zeros((ROWS - 1, WIDTH), np.uint16)],
    "too many": [np.zeros((ROWS, WIDTH), np.uint16), np.zeros((1, WIDTH), np.uint16)],
    "no array": [],
    "no rows": [np.zeros((0, WIDTH), np.uint16)],
    "no columns": [np.zeros((ROWS, 0), np.uint16)],
}


@pytest.mark.parametrize("what", MISSHAPEN)
@pytest.mark.parametrize("codec", CODECS)
def test_arrays_that_are_no_rows_are_refused(codec: Codec, what: str) -> None:
    """A strided view read as contiguous would send the neighbours' values."""
    rows = MISSHAPEN[what]
    out = np.full(ROWS * WIDTH * 8, 0xEE, np.uint8)
    with pytest.raises(LayoutError):
        codec.encode(rows, SHAPE, out)
    assert (out == 0xEE).all()
    with pytest.raises(LayoutError):
        codec.decode(payload_for(codec), SHAPE, rows)


@pytest.mark.parametrize("codec", CODECS)
def test_buffers_that_do_not_fit_are_refused(codec: Codec) -> None:
    rows = outlier_rows(ROWS, WIDTH, KvDtype.BF16)
    needed = payload_for(codec).size
    for out in (np.zeros(needed - 1, np.uint8), np.zeros(needed * 2, np.uint8)[::2], np.zeros(needed, np.int8)):
        with pytest.raises(LayoutError):
            codec.encode([rows], SHAPE, out)
    with pytest.raises(LayoutError, match=f"needs {needed} bytes, the buffer has {needed - 1}"):
        codec.encode([rows], SHAPE, np.zeros(needed - 1, np.uint8))
    sink = rows.copy()
    sink.flags.writeable = False
    with pytest.raises(LayoutError, match="read-only"):
        codec.decode(np.frombuffer(encoded(codec, [rows], KvDtype.BF16, SHAPE), np.uint8), SHAPE, [sink])
    assert (sink == rows).all()
