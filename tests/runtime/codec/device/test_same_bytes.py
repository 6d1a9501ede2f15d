"""Kernels for GPUs, run in Triton's interpreter, write the bytes of the oracle and read them alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from codec_oracles import ORACLES, alike, device_rows, reference_payload, reference_rows
from device_kv import Elements, Pages, decoded_on_device, encoded_on_device, pages_of
from kv_rows import FLOAT_DTYPES, flat_shape, is_finite, outlier_rows
from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.registry import device_codecs
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.errors import CodecRefused, CorruptPayload
from kvferry_runtime.layout import KvDtype, LayerShape

# where a GPU gives infinity, which kernels then saturate, the interpreter's numpy warns too
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

DEVICE = device_codecs()
CODED = [name for name in DEVICE if name != "none"]


def flat_pages(name: str, rows: Elements, dtype: KvDtype, block_tokens: int) -> Pages:
    """These rows as tokens of one head; as keys and as values for a method that tells them apart."""
    shape = flat_shape(*rows.shape, dtype)
    if DEVICE[name].supports(LayerShape(1, 1, shape.head_dim, dtype)) is not None:
        shape, rows = replace(shape, parts=2), np.concatenate([rows, rows])
    return pages_of(rows, shape, block_tokens)


def check_alike(name: str, pages: Pages) -> None:
    shape = pages.shape
    layer = LayerShape(shape.parts, shape.heads, shape.head_dim, shape.dtype)
    assert DEVICE[name].supports(layer) == ORACLES[name].supports(layer)
    if DEVICE[name].supports(layer) is not None:
        with pytest.raises(CodecRefused):
            encoded_on_device(DEVICE[name], pages)
        return
    assert alike(DEVICE[name], pages)


def test_every_method_has_an_oracle() -> None:
    assert set(ORACLES) == set(DEVICE)
    for name, codec in DEVICE.items():
        assert (codec.name, codec.wire_id) == (name, ORACLES[name].wire_id)


@pytest.mark.parametrize("head_first", [False, True], ids=["tokens-first", "heads-first"])
@pytest.mark.parametrize(
    "shape",
    [
        ChunkShape(1, 1, 1, 1, 1, KvDtype.BF16),
        ChunkShape(2, 2, 11, 3, 33, KvDtype.BF16),
        ChunkShape(1, 1, 37, 1, 576, KvDtype.FP16),
        ChunkShape(3, 2, 20, 2, 64, KvDtype.FP32),
        ChunkShape(1, 2, 30, 4, 128, KvDtype.BF16),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", DEVICE)
def test_paged_caches(name: str, shape: ChunkShape, head_first: bool) -> None:
    """Case 29: any shape, blocks in any order, a chunk that starts and ends within a block."""
    rows = outlier_rows(shape.rows, shape.head_dim, shape.dtype, seed=shape.rows)
    check_alike(name, pages_of(rows, shape, block_tokens=4, seed=1, head_first=head_first))


@pytest.mark.parametrize("name", DEVICE)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_hostile_bits(name: str, data: st.DataObject) -> None:
    """Cases 27, 28 and 31: zeros, subnormals, NaN, infinities; what one side refuses, so does the other."""
    dtype = data.draw(st.sampled_from(FLOAT_DTYPES))
    width = 8 * dtype.itemsize
    edges = (0, 1, 1 << (width - 1), (1 << width) - 1, 0x7F80 << (width - 16), 0x7C00 << (width - 16), 0x0080)
    bits = st.sampled_from(edges) | st.integers(0, 2**width - 1)
    count, head_dim = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 40)))
    rows = data.draw(arrays(element_dtype(dtype), (count, head_dim), elements=bits))
    check_alike(name, flat_pages(name, rows, dtype, block_tokens=2))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [KvDtype.BF16, KvDtype.FP16])
@pytest.mark.parametrize("name", DEVICE)
def test_every_finite_16_bit_pattern(name: str, dtype: KvDtype) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    rows = patterns[is_finite(patterns, dtype)].reshape(-1, 64)
    check_alike(name, flat_pages(name, rows, dtype, block_tokens=64))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", DEVICE)
def test_every_row_magnitude(name: str, dtype: KvDtype) -> None:
    """Largest magnitudes span all exponents, with ties and near-ties at every one of them."""
    generator = np.random.default_rng(3)
    bits = 8 * dtype.itemsize
    rows = generator.integers(0, 2**bits, (2048, 48), np.uint64).astype(element_dtype(dtype))
    rows >>= generator.integers(0, bits, (2048, 1)).astype(rows.dtype)
    rows[~is_finite(rows, dtype)] = 0
    check_alike(name, flat_pages(name, rows, dtype, block_tokens=16))


def test_opaque_bytes_go_as_they_are() -> None:
    rows: Elements = np.random.default_rng(5).integers(0, 256, (30, 66), np.uint8)
    check_alike("none", pages_of(rows, ChunkShape(1, 1, 30, 1, 66, KvDtype.UINT8), block_tokens=8))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", CODED)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_payloads_that_no_encoder_wrote(name: str, dtype: KvDtype, data: st.DataObject) -> None:
    """Both sides refuse the same payloads, and read the others alike."""
    pages = flat_pages(name, outlier_rows(6, 33, dtype), dtype, block_tokens=4)
    payload = bytearray(reference_payload(ORACLES[name], pages) or b"")
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    ours = device_rows(DEVICE[name], bytes(payload), pages)
    assert ours == reference_rows(ORACLES[name], bytes(payload), pages)


@pytest.mark.parametrize("name", DEVICE)
def test_a_payload_of_another_length_is_refused(name: str) -> None:
    pages = flat_pages(name, outlier_rows(6, 16, KvDtype.BF16), KvDtype.BF16, block_tokens=4)
    longer = bytes(DEVICE[name].max_wire_bytes(pages.shape) + 1)
    with pytest.raises(CorruptPayload):
        decoded_on_device(DEVICE[name], longer, pages)
