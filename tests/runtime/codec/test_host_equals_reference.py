"""The compiled codecs write the bytes of the oracle, and read them alike, whatever the bits are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from codec_pairs import ORACLES
from kv_rows import FLOAT_DTYPES, Elements, decoded, encoded, is_finite, outlier_rows
from kvferry_runtime.codec.base import Codec
from kvferry_runtime.codec.registry import host_codecs
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.errors import NotEncodable
from kvferry_runtime.layout import KvDtype

HOST = host_codecs()
NAMES = ("int8", "fp8", "fp4")
PAIRS = [pytest.param(HOST[name], ORACLES[name], id=name) for name in NAMES]
BYTE_PAIRS = [pytest.param(HOST[name], ORACLES[name], id=name) for name in ("int8", "fp8")]
MEETING_POINTS = {
    KvDtype.BF16: (0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0x0200, 0x01FE),
    KvDtype.FP16: (0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E01, 0x3C00),
    KvDtype.FP32: (0, 1 << 31, 1, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0x7FC00000, 0x05800000),
}
"""Both zeros, subnormals, the smallest normal, the largest, infinities, NaN, and magnitudes near the scale's bound."""


def outcome(codec: Codec, rows: Elements, dtype: KvDtype) -> tuple[bytes, bytes] | None:
    """Payload and what it decodes to; None if the rows cannot be encoded."""
    try:
        payload = encoded(codec, [rows], dtype)
    except NotEncodable:
        return None
    return payload, decoded(codec, payload, *rows.shape, dtype).tobytes()


def hostile_rows(dtype: KvDtype) -> st.SearchStrategy[Elements]:
    """A few rows of any bits; half of all elements are those where rules meet."""
    bits = st.sampled_from(MEETING_POINTS[dtype]) | st.integers(0, 2 ** (8 * dtype.itemsize) - 1)
    shapes = st.tuples(st.integers(1, 4), st.integers(1, 40))
    return shapes.flatmap(lambda shape: arrays(element_dtype(dtype), shape, elements=bits))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize(("host", "reference"), PAIRS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_hostile_bits(host: Codec, reference: Codec, dtype: KvDtype, data: st.DataObject) -> None:
    rows = data.draw(hostile_rows(dtype))
    ours = outcome(host, rows, dtype)
    assert ours == outcome(reference, rows, dtype)
    assert (ours is None) == (not is_finite(rows, dtype).all())


@pytest.mark.parametrize("head_dim", [1, 2, 63, 80, 128, 576])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize(("host", "reference"), PAIRS)
def test_outlier_channels(host: Codec, reference: Codec, dtype: KvDtype, head_dim: int) -> None:
    rows = outlier_rows(64, head_dim, dtype)
    assert outcome(host, rows, dtype) == outcome(reference, rows, dtype)


@pytest.mark.parametrize("head_dim", [1, 64])
@pytest.mark.parametrize("dtype", [KvDtype.BF16, KvDtype.FP16])
@pytest.mark.parametrize(("host", "reference"), PAIRS)
def test_every_finite_16_bit_pattern(host: Codec, reference: Codec, dtype: KvDtype, head_dim: int) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    finite = patterns[is_finite(patterns, dtype)]
    rows = np.ascontiguousarray(finite.reshape(-1, head_dim))
    assert outcome(host, rows, dtype) == outcome(reference, rows, dtype)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize(("host", "reference"), PAIRS)
def test_every_row_magnitude(host: Codec, reference: Codec, dtype: KvDtype) -> None:
    """Rows whose largest magnitudes span all exponents, with ties and near-ties at every one of them."""
    generator = np.random.default_rng(3)
    bits = 8 * dtype.itemsize
    rows = generator.integers(0, 2**bits, (2048, 48), np.uint64).astype(element_dtype(dtype))
    rows >>= generator.integers(0, bits, (2048, 1)).astype(rows.dtype)
    rows[~is_finite(rows, dtype)] = 0
    assert outcome(host, rows, dtype) == outcome(reference, rows, dtype)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize(("host", "reference"), BYTE_PAIRS)
def test_every_code_and_many_scales(host: Codec, reference: Codec, dtype: KvDtype) -> None:
    """A payload that no encoder of ours wrote still decodes alike."""
    codes = np.array([code for code in range(256) if code not in (0x7F, 0x80, 0xFF)], np.uint8)
    largest = {KvDtype.BF16: 7e35, KvDtype.FP16: 146.0, KvDtype.FP32: 7.5e35}[dtype]
    scales = np.geomspace(2.0**-116, largest, 300).astype("<f4")
    payload = np.tile(codes, 300).tobytes() + scales.tobytes()
    ours = decoded(host, payload, 300, codes.size, dtype)
    assert (ours == decoded(reference, payload, 300, codes.size, dtype)).all()
    assert is_finite(ours, dtype).all()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_every_e2m1_code_scale_and_exponent(dtype: KvDtype) -> None:
    """Two groups for every scale and exponent that occurs, with all codes in every one of them."""
    codes = np.array([[low | high << 4 for low, high in zip(range(16), range(15, -1, -1), strict=True)]], np.uint8)
    scales, exponents = np.meshgrid(np.arange(1, 127, dtype=np.uint8), np.arange(22, 142, dtype=np.uint8))
    count = scales.size
    pair = np.stack([scales.ravel(), scales.ravel()[::-1]], axis=1)
    payload = np.tile(codes, (count, 1)).tobytes() + pair.tobytes() + exponents.tobytes()
    ours = decoded(HOST["fp4"], payload, count, 32, dtype)
    assert (ours == decoded(ORACLES["fp4"], payload, count, 32, dtype)).all()
    assert is_finite(ours, dtype).all()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_flushed_subnormals_change_nothing(name: str, dtype: KvDtype) -> None:
    generator = np.random.default_rng(4)
    rows = generator.integers(0, 2 ** (8 * dtype.itemsize), (256, 32), np.uint64).astype(element_dtype(dtype))
    rows &= {2: 0x87FF, 4: 0x85FFFFFF}[dtype.itemsize]  # many subnormal and many tiny elements
    expected = outcome(HOST[name], rows, dtype)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        assert outcome(HOST[name], rows, dtype) == expected
    finally:
        torch.set_flush_denormal(False)
