"""What no codec may do, whatever it is given: crash, write beside its buffers, or give back wrong values in silence."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from codec_pairs import HOSTILE_ROWS, ORACLES, kv_shape
from kv_rows import FLOAT_DTYPES, Elements, encoded, is_finite, outlier_rows, values_of
from kvferry_runtime.codec.base import ChunkShape, Codec, ScaleScope
from kvferry_runtime.codec.registry import host_codecs
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.errors import CodecRefused, CorruptPayload, NotEncodable
from kvferry_runtime.layout import KvDtype, LayerShape

HOST = host_codecs()
LOSSY = [name for name, codec in HOST.items() if codec.lossy]
EXACT = [name for name, codec in HOST.items() if not codec.lossy]
WIDTHS = (1, 16, 63, 64, 80)

LARGEST_ERROR = {"int8": 0.005, "fp8": 0.07, "fp8-head": 0.07, "fp8-tensor": 0.07, "k8v4": 0.08, "fp4": 0.2}
"""Relative to the largest magnitude of the values that share a scale."""
TINY = 1e-30
"""Below that, values may become zero."""

_GUARD = 256


def guarded_decode(codec: Codec, payload: bytes, shape: ChunkShape) -> Elements:
    """Decode into rows between guard bytes, out of a payload that is exactly as long as it is; check the guards."""
    size = shape.raw_bytes
    memory = np.full(size + 2 * _GUARD, 0xA5, np.uint8)
    rows = memory[_GUARD : _GUARD + size].view(element_dtype(shape.dtype)).reshape(shape.rows, shape.head_dim)
    try:
        codec.decode(np.frombuffer(payload, np.uint8), shape, [rows])
    finally:
        assert (memory[:_GUARD] == 0xA5).all()
        assert (memory[_GUARD + size :] == 0xA5).all()
    return rows.copy()


def verdict(codec: Codec, payload: bytes, shape: ChunkShape) -> bytes | None:
    """The decoded bytes; None for a corrupt payload."""
    try:
        return guarded_decode(codec, payload, shape).tobytes()
    except CorruptPayload:
        return None


def payload_of(codec: Codec, rows: Elements, shape: ChunkShape) -> bytes | None:
    """None if the values cannot be carried."""
    try:
        return encoded(codec, [rows], shape.dtype, shape)
    except NotEncodable:
        return None


def hostile_bits(shape: ChunkShape) -> st.SearchStrategy[Elements]:
    width = 8 * shape.dtype.itemsize
    edge = st.sampled_from([0, 1, 1 << (width - 1), (1 << (width - 1)) + 1])
    return arrays(
        element_dtype(shape.dtype), (shape.rows, shape.head_dim), elements=edge | st.integers(0, (1 << width) - 1)
    )


@pytest.fixture
def flushing() -> Iterator[None]:
    """A thread that turns subnormal results and operands into zero, as some engines set it."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    yield
    torch.set_flush_denormal(False)


def test_every_method_has_an_oracle() -> None:
    assert set(ORACLES) == set(HOST)
    for name, codec in HOST.items():
        oracle = ORACLES[name]
        assert (codec.wire_id, codec.lossy, codec.scale_scope) == (oracle.wire_id, oracle.lossy, oracle.scale_scope)


@pytest.mark.parametrize("what", HOSTILE_ROWS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", HOST)
def test_hostile_values_come_back_within_bounds_or_are_refused(name: str, dtype: KvDtype, what: str) -> None:
    for width in WIDTHS:
        shape = kv_shape(width, dtype)
        rows = HOSTILE_ROWS[what](shape)
        payload = payload_of(HOST[name], rows, shape)
        assert payload == payload_of(ORACLES[name], rows, shape)
        if payload is None:
            assert name == "k8v4"
            assert np.abs(values_of(rows, dtype)).max() >= 8e37
            continue
        after = guarded_decode(HOST[name], payload, shape)
        assert after.tobytes() == guarded_decode(ORACLES[name], payload, shape).tobytes()
        if name in EXACT:
            assert after.tobytes() == rows.tobytes()
            continue
        assert is_finite(after, dtype).all()
        before = values_of(rows, dtype)
        per_row = HOST[name].scale_scope not in (ScaleScope.HEAD, ScaleScope.TENSOR)
        largest = np.abs(before).max(axis=1 if per_row else None, keepdims=True)
        assert (np.abs(values_of(after, dtype) - before) <= largest * LARGEST_ERROR[name] + TINY).all()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", HOST)
@settings(max_examples=25, deadline=None, print_blob=True)
@given(data=st.data())
def test_any_bits_give_the_bytes_of_the_oracle(name: str, dtype: KvDtype, data: st.DataObject) -> None:
    shape = kv_shape(data.draw(st.sampled_from([1, 3, 16, 17, 31, 33])), dtype)
    rows = data.draw(hostile_bits(shape))
    payload = payload_of(HOST[name], rows, shape)
    assert payload == payload_of(ORACLES[name], rows, shape)
    if payload is not None:
        assert guarded_decode(HOST[name], payload, shape).tobytes() == verdict(ORACLES[name], payload, shape)


@pytest.mark.parametrize("where", ["one element", "all elements"])
@pytest.mark.parametrize("bad", ["nan", "infinity", "negative infinity"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", HOST)
def test_values_that_are_not_finite_are_carried_exactly_or_refused(
    name: str, dtype: KvDtype, bad: str, where: str
) -> None:
    shape = kv_shape(80, dtype)
    rows = outlier_rows(shape.rows, 80, dtype)
    infinity = {KvDtype.BF16: 0x7F80, KvDtype.FP16: 0x7C00, KvDtype.FP32: 0x7F800000}[dtype]
    sign = 1 << (8 * dtype.itemsize - 1)
    bits = {"nan": infinity + 1, "infinity": infinity, "negative infinity": infinity | sign}[bad]
    for place in [(0, 0), (7, 79), (shape.rows - 1, 40)]:
        hostile = rows.copy()
        hostile[place if where == "one element" else ...] = bits
        if name in LOSSY:
            with pytest.raises(NotEncodable, match="NaN"):
                encoded(HOST[name], [hostile], dtype, shape)
        else:
            payload = encoded(HOST[name], [hostile], dtype, shape)
            assert guarded_decode(HOST[name], payload, shape).tobytes() == hostile.tobytes()


@pytest.mark.parametrize("what", HOSTILE_ROWS)
@pytest.mark.parametrize("name", HOST)
@pytest.mark.usefixtures("flushing")
def test_a_thread_that_flushes_subnormals_changes_nothing(name: str, what: str) -> None:
    for dtype in FLOAT_DTYPES:
        for width in (16, 63):
            shape = kv_shape(width, dtype)
            rows = HOSTILE_ROWS[what](shape)
            flushed = payload_of(HOST[name], rows, shape)
            torch.set_flush_denormal(False)
            payload = payload_of(HOST[name], rows, shape)
            expected = None if payload is None else verdict(HOST[name], payload, shape)
            torch.set_flush_denormal(True)
            assert flushed == payload
            if flushed is not None:
                assert verdict(HOST[name], flushed, shape) == expected


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", HOST)
def test_payloads_of_a_wrong_length_are_refused(name: str, dtype: KvDtype) -> None:
    shape = kv_shape(63, dtype)
    good = encoded(HOST[name], [outlier_rows(shape.rows, 63, dtype)], dtype, shape)
    for payload in (b"", good[:1], good[: len(good) // 2], good[:-1], good + b"\0", good + good):
        for codec in (HOST[name], ORACLES[name]):
            with pytest.raises(CorruptPayload):
                guarded_decode(codec, payload, shape)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", HOST)
@settings(max_examples=40, deadline=None, print_blob=True)
@given(data=st.data())
def test_a_damaged_payload_is_refused_or_gives_finite_values(name: str, dtype: KvDtype, data: st.DataObject) -> None:
    shape = kv_shape(data.draw(st.sampled_from([1, 16, 33])), dtype)
    damaged = bytearray(encoded(HOST[name], [outlier_rows(shape.rows, shape.head_dim, dtype)], dtype, shape))
    places = st.tuples(st.integers(0, len(damaged) - 1), st.sampled_from([0, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    for place, byte in data.draw(st.lists(places, min_size=1, max_size=8)):
        damaged[place] = byte
    ours = verdict(HOST[name], bytes(damaged), shape)
    assert ours == verdict(ORACLES[name], bytes(damaged), shape)
    if ours is not None and name in LOSSY:
        assert is_finite(np.frombuffer(ours, element_dtype(dtype)), dtype).all()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", HOST)
def test_noise_of_the_right_length_never_crashes(name: str, dtype: KvDtype) -> None:
    generator = np.random.default_rng(8)
    for width in WIDTHS:
        shape = kv_shape(width, dtype)
        length = len(encoded(HOST[name], [outlier_rows(shape.rows, width, dtype)], dtype, shape))
        for _ in range(20):
            noise = generator.integers(0, 256, length, np.uint8).tobytes()
            assert verdict(HOST[name], noise, shape) == verdict(ORACLES[name], noise, shape)


@pytest.mark.parametrize("name", LOSSY)
def test_opaque_bytes_are_refused_by_name(name: str) -> None:
    """Case 29: packed rows with scales of their own are no numbers."""
    layer = LayerShape(parts=2, heads=2, head_dim=68, dtype=KvDtype.UINT8)
    assert f"{name} carries" in str(HOST[name].supports(layer))
    shape = kv_shape(68, KvDtype.UINT8)
    packed = np.zeros((shape.rows, 68), np.uint8)
    out = np.full(packed.size * 2, 0xEE, np.uint8)
    with pytest.raises(CodecRefused, match=f"{name} carries"):
        HOST[name].encode([packed], shape, out)
    assert (out == 0xEE).all()
