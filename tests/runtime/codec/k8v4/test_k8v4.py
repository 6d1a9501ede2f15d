"""`k8v4`: keys as in `int8`, values in four bits; host and reference write the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kv_rows import FLOAT_DTYPES, Elements, decoded, encoded, is_finite, outlier_rows, rows_of, values_of
from kvferry_runtime.codec.base import ChunkShape, Codec
from kvferry_runtime.codec.k8v4.reference import ReferenceK8V4
from kvferry_runtime.codec.registry import host_codecs
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.errors import CodecRefused, CorruptPayload, NotEncodable
from kvferry_runtime.layout import KvDtype, LayerShape

CODECS = host_codecs(["int8", "k8v4"])
HOST, REFERENCE = CODECS["k8v4"], ReferenceK8V4()
BOTH = [pytest.param(HOST, id="host"), pytest.param(REFERENCE, id="reference")]
MEETING_POINTS = {
    KvDtype.BF16: (0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x7E7F, 0xFE7F, 0x7E80, 0xFE80, 0x7F80, 0x7FC0, 0x0D80),
    KvDtype.FP16: (0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E01, 0x3C00),
    KvDtype.FP32: (0, 1 << 31, 1, 0x807FFFFF, 0x00800000, 0x7E7FFFFF, 0xFE7FFFFF, 0x7E800000, 0x7F800000, 0x0D8FFFFF),
}
"""Both zeros, subnormals, the smallest normal, both sides of the limit, infinities, NaN, and the smallest step."""


def keys_and_values(pairs: int, head_dim: int, dtype: KvDtype) -> ChunkShape:
    """`pairs` rows of each."""
    return ChunkShape(layers=1, parts=2, tokens=pairs, heads=1, head_dim=head_dim, dtype=dtype)


def after(codec: Codec, rows: Elements, shape: ChunkShape) -> Elements:
    payload = encoded(codec, [rows], shape.dtype, shape)
    return decoded(codec, payload, *rows.shape, shape.dtype, shape)


def outcome(codec: Codec, rows: Elements, shape: ChunkShape) -> tuple[bytes, bytes] | None:
    """Payload and what it decodes to; None if the rows cannot be encoded."""
    try:
        payload = encoded(codec, [rows], shape.dtype, shape)
    except NotEncodable:
        return None
    return payload, decoded(codec, payload, *rows.shape, shape.dtype, shape).tobytes()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), pairs=st.integers(1, 3), head_dim=st.integers(1, 70))
def test_hostile_bits(dtype: KvDtype, data: st.DataObject, pairs: int, head_dim: int) -> None:
    bits = st.sampled_from(MEETING_POINTS[dtype]) | st.integers(0, 2 ** (8 * dtype.itemsize) - 1)
    rows = data.draw(arrays(element_dtype(dtype), (2 * pairs, head_dim), elements=bits))
    shape = keys_and_values(pairs, head_dim, dtype)
    ours = outcome(HOST, rows, shape)
    assert ours == outcome(REFERENCE, rows, shape)
    limit = np.abs(values_of(rows[pairs:], dtype)) < 2.0**126
    assert (ours is None) == (not (is_finite(rows, dtype).all() and limit.all()))
    if ours is not None:
        assert is_finite(np.frombuffer(ours[1], element_dtype(dtype)), dtype).all()


@pytest.mark.parametrize("head_dim", [1, 2, 31, 32, 33, 63, 80, 128, 576])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_ranges_of_every_size(dtype: KvDtype, head_dim: int) -> None:
    """Groups around zero and far from it, from tiny to large."""
    generator = np.random.default_rng(head_dim)
    ends = (-7, 4) if dtype is KvDtype.FP16 else (-37, 37)
    magnitudes = 10.0 ** generator.uniform(*ends, (64, 1))
    values = (
        generator.standard_normal((64, head_dim)) * magnitudes + generator.choice([0, 3, -500], (64, 1)) * magnitudes
    )
    largest = 6e4 if dtype is KvDtype.FP16 else 8e37
    rows = rows_of(np.clip(values, -largest, largest), dtype)
    shape = keys_and_values(32, head_dim, dtype)
    assert outcome(HOST, rows, shape) == outcome(REFERENCE, rows, shape)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_flushed_subnormals_change_nothing(dtype: KvDtype) -> None:
    generator = np.random.default_rng(4)
    rows = generator.integers(0, 2 ** (8 * dtype.itemsize), (256, 64), np.uint64).astype(element_dtype(dtype))
    rows &= {2: 0x87FF, 4: 0x85FFFFFF}[dtype.itemsize]  # many subnormal and many tiny elements
    shape = keys_and_values(128, 64, dtype)
    expected = outcome(HOST, rows, shape)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        assert outcome(HOST, rows, shape) == expected
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_keys_are_those_of_int8(dtype: KvDtype) -> None:
    shape = ChunkShape(layers=2, parts=2, tokens=5, heads=3, head_dim=40, dtype=dtype)
    rows = outlier_rows(60, 40, dtype)
    is_key = np.tile(np.repeat([True, False], 15), 2)
    found = after(HOST, rows, shape)
    keys = np.ascontiguousarray(rows[is_key])
    payload = encoded(CODECS["int8"], [keys], dtype)
    assert encoded(HOST, [rows], dtype, shape).startswith(payload)
    assert (found[is_key] == decoded(CODECS["int8"], payload, 30, 40, dtype)).all()


@pytest.mark.parametrize("head_dim", [1, 63, 80, 128])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_error_of_values(dtype: KvDtype, head_dim: int) -> None:
    """Case 30: odd widths come back whole; at most 0.51 steps of a group of 32."""
    for offset, factor in ((0, 1e-4), (0, 1.0), (40, 1.0), (-100, 30.0)):
        rows = rows_of(values_of(outlier_rows(400, head_dim, dtype), dtype) * factor + offset, dtype)
        before, found = (
            values_of(part[200:], dtype) for part in (rows, after(HOST, rows, keys_and_values(200, head_dim, dtype)))
        )
        for start in range(0, head_dim, 32):
            group = before[:, start : start + 32]
            # the minimum of fp16 and fp32 rows is rounded down to bf16
            span = group.max(axis=1) - group.min(axis=1) + np.abs(group.min(axis=1)) * 2.0**-7
            error = np.abs(found[:, start : start + 32] - group).max(axis=1)
            rounding = np.abs(group).max(axis=1) * {KvDtype.BF16: 2.0**-8, KvDtype.FP16: 2.0**-10}.get(dtype, 2.0**-22)
            assert (error <= span / 15 * 0.51 + rounding).all()


@pytest.mark.parametrize("codec", BOTH)
def test_equal_values_zero_rows_and_tiny_rows(codec: Codec) -> None:
    """Case 28: no zero step, no neighbour changed."""
    shape = keys_and_values(6, 64, KvDtype.BF16)
    normal = outlier_rows(12, 64, KvDtype.BF16)
    mixed = normal.copy()
    mixed[7] = 0
    mixed[8] = rows_of([[-3.140625] * 64], KvDtype.BF16)[0]
    mixed[9] = rows_of([np.linspace(-1e-6, 1e-6, 64)], KvDtype.BF16)[0]
    mixed[10, :32] = 0x8001
    found, expected = after(codec, mixed, shape), after(codec, normal, shape)
    assert (found[7] == 0).all()
    assert (found[8] == mixed[8]).all()
    assert np.abs(values_of(found[9:10], KvDtype.BF16) - values_of(mixed[9:10], KvDtype.BF16)).max() < 4e-8
    assert (found[10, :32] == 0).all()
    others = [*range(7), 11]
    assert (found[others] == expected[others]).all()
    assert (after(codec, np.zeros_like(normal), shape) == 0).all()


def test_bf16_keeps_its_range_and_fp16_saturates() -> None:
    """Case 31: through fp16, 1e5 would be infinite; and fp16 itself ends at 65504, whatever a step adds up to."""
    rows = rows_of([[1e5, -1e5, 12.0, 0.0]] * 2 + [[8e37, -8e37, 1e36, -0.0]] * 2, KvDtype.BF16)
    found = values_of(after(HOST, rows, keys_and_values(2, 4, KvDtype.BF16)), KvDtype.BF16)
    assert np.abs(found - values_of(rows, KvDtype.BF16)).max() <= 16e37 / 15
    assert np.isfinite(found).all()
    ends = np.array([[0x7BFF, 0xFBFF, 0x7BFE, 0x3C00]] * 2, np.uint16)
    assert is_finite(after(HOST, ends, keys_and_values(1, 4, KvDtype.FP16)), KvDtype.FP16).all()


@pytest.mark.parametrize("codec", BOTH)
@pytest.mark.parametrize(
    ("dtype", "bits"), [(KvDtype.BF16, 0x7FC0), (KvDtype.FP16, 0xFC00), (KvDtype.FP32, 0x7F800001)]
)
def test_a_nan_or_infinity_anywhere_is_refused(codec: Codec, dtype: KvDtype, bits: int) -> None:
    for row, named in ((2, r"row 2 of 5 holds"), (9, r"k8v4: row 4 of 5 of values")):
        rows = outlier_rows(10, 33, dtype)
        rows[row, 32] = bits
        with pytest.raises(NotEncodable, match=named):
            encoded(codec, [rows], dtype, keys_and_values(5, 33, dtype))


@pytest.mark.parametrize("codec", BOTH)
def test_caches_that_have_no_keys_and_values_are_refused(codec: Codec) -> None:
    """Case 29: by name, before a byte is written."""
    out = np.full(10_000, 0xEE, np.uint8)
    for parts, dtype, text in ((1, KvDtype.BF16, "use int8"), (2, KvDtype.UINT8, "not uint8")):
        assert text in str(codec.supports(LayerShape(parts, 1, 132, dtype)))
        shape = ChunkShape(1, parts, 2, 1, 132, dtype)
        rows = np.zeros((2 * parts, 132), element_dtype(dtype))
        with pytest.raises(CodecRefused, match=text):
            codec.encode([rows], shape, out)
        with pytest.raises(CodecRefused, match=text):
            codec.decode(out[:100], shape, [rows])
    assert (out == 0xEE).all()
    assert all(codec.supports(LayerShape(2, 3, 63, dtype)) is None for dtype in FLOAT_DTYPES)


def test_size_is_exact_and_nothing_behind_it_is_written() -> None:
    for head_dim, size in ((128, 128 + 4 + 64 + 4 * 4), (63, 63 + 4 + 32 + 2 * 4), (1, 1 + 4 + 1 + 4)):
        shape = keys_and_values(10, head_dim, KvDtype.BF16)
        out = np.full(10 * size + 32, 0xEE, np.uint8)
        assert HOST.encode([outlier_rows(20, head_dim, KvDtype.BF16)], shape, out) == 10 * size
        assert HOST.max_wire_bytes(shape) == 10 * size
        assert (out[10 * size :] == 0xEE).all()


@pytest.mark.parametrize("codec", BOTH)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_damaged_payloads(codec: Codec, dtype: KvDtype) -> None:
    shape = keys_and_values(6, 33, dtype)
    good = encoded(codec, [outlier_rows(12, 33, dtype)], dtype, shape)
    scales, steps, minima = 6 * 33, 6 * (33 + 4 + 17), 6 * (33 + 4 + 17 + 4)
    wrong = {
        "a void code": (5, b"\x80"),
        "a scale that is NaN": (scales, np.float32(np.nan).tobytes()),
        "a step of zero": (steps + 2, b"\x00\x00"),
        "a negative step": (steps + 2, b"\x80\xbf"),
        "an infinite step": (steps + 2, b"\x80\x7f"),
        "a step beyond 2^127 / 15": (steps + 2, b"\x0a\x7d"),
        "a minimum that is NaN": (minima + 4, b"\xc0\x7f"),
        "a minimum that is infinite": (minima + 4, b"\x80\xff"),
        "a minimum beyond 2^126": (minima + 4, b"\x81\x7e"),
        "a subnormal minimum": (minima + 4, b"\x01\x80"),
    }
    for what, (start, content) in wrong.items():
        payload = good[:start] + content + good[start + len(content) :]
        with pytest.raises(CorruptPayload, match=r"^k8v4: "):
            decoded(codec, payload, 12, 33, dtype, shape)
            pytest.fail(what)
    for length in (0, 1, len(good) - 1, len(good) + 1, 2 * len(good)):
        with pytest.raises(CorruptPayload, match=f"bytes, not {length}$"):
            decoded(codec, (good + good)[:length], 12, 33, dtype, shape)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_flipped_bits(dtype: KvDtype) -> None:
    """Refused, or finite values, which both implementations agree on; and nothing beside the rows is written."""
    shape = keys_and_values(2, 33, dtype)
    good = encoded(HOST, [outlier_rows(4, 33, dtype)], dtype, shape)
    for bit in range(0, len(good) * 8, 3):
        payload = bytearray(good)
        payload[bit // 8] ^= 1 << bit % 8
        outcomes = []
        for codec in (HOST, REFERENCE):
            room = np.full((6, 33), 0xA5, element_dtype(dtype))
            try:
                codec.decode(np.frombuffer(payload, np.uint8), shape, [room[1:-1]])
                assert is_finite(room, dtype).all()
                outcomes.append(room.tobytes())
            except CorruptPayload:
                outcomes.append(b"")
            assert (room[[0, -1]] == 0xA5).all()
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("codec", BOTH)
def test_golden_bytes(codec: Codec) -> None:
    """Frozen: other versions of this software read these. One row of keys, one of values, of five elements."""
    rows = rows_of([[0, 1, -1, 0.5, 127], [-2, 1, 0, 5.5, -1.9]], KvDtype.BF16)
    shape = keys_and_values(1, 5, KvDtype.BF16)
    payload = bytes.fromhex("0001ff007f 0000803f  f00604 003f 00c0")
    assert encoded(codec, [rows], KvDtype.BF16, shape) == payload
    found = values_of(decoded(codec, payload, 2, 5, KvDtype.BF16, shape), KvDtype.BF16)
    assert found.tolist() == [[0, 1, -1, 0, 127], [-2, 1, 0, 5.5, -2]]
