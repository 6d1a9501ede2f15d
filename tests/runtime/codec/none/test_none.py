"""`none` moves bits: whatever they mean, they come back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_rows import decoded, encoded, round_trip, rows_of
from kvferry_runtime.codec.none.format import NoneCodec
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.errors import CorruptPayload
from kvferry_runtime.layout import KvDtype, LayerShape

CODEC = NoneCodec()


@given(data=st.data(), dtype=st.sampled_from(KvDtype), rows=st.integers(1, 6), head_dim=st.integers(1, 9))
def test_any_bits_are_identical(data: st.DataObject, dtype: KvDtype, rows: int, head_dim: int) -> None:
    raw = data.draw(st.binary(min_size=rows * head_dim * dtype.itemsize, max_size=rows * head_dim * dtype.itemsize))
    array = np.frombuffer(raw, element_dtype(dtype)).reshape(rows, head_dim)
    assert encoded(CODEC, [array], dtype) == raw
    assert decoded(CODEC, raw, rows, head_dim, dtype).tobytes() == raw


def test_bf16_beyond_fp16_and_signed_zero() -> None:
    """Case 31: bit for bit."""
    rows = np.concatenate([rows_of([[1e5, 3e38, 1e-30, -0.0]], KvDtype.BF16), [[0x0001, 0x8001, 0x7FC1, 0xFF80]]])
    rows = rows.astype(np.uint16)
    assert (round_trip(CODEC, rows, KvDtype.BF16) == rows).all()


def test_packed_caches_of_odd_width() -> None:
    for shape in ((4 * 16, 132), (4 * 16 * 2, 64 + 4)):
        rows = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        assert CODEC.supports(LayerShape(1, 1, shape[1], KvDtype.UINT8)) is None
        assert (round_trip(CODEC, rows, KvDtype.UINT8) == rows).all()


def test_golden_bytes() -> None:
    """Little-endian, rows one after the other."""
    assert encoded(CODEC, [np.array([[0x3F80, 0xBF80], [1, 2]], np.uint16)], KvDtype.BF16).hex() == "803f80bf01000200"


@pytest.mark.parametrize("length", [0, 31, 33])
def test_another_length_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptPayload, match=f"32 bytes, not {length}"):
        decoded(CODEC, bytes(length), 4, 4, KvDtype.BF16)
