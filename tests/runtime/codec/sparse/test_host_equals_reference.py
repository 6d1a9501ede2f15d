"""The choice and the bytes of sparse methods on host memory are those of the oracle."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.codec.sparse.payload import longest_payload, pack, read_kept, unpack
from kvferry_runtime.codec.sparse.reference import selected, unpacked
from kvferry_runtime.codec.sparse.selection import Scores, select
from sparse_chunks import any_kept, any_rows, flat, reference_payload, scores_of, shapes

SEEDS = st.integers(0, 1 << 32)
ENDS = st.integers(0, 40)


@given(scores_of, st.integers(0, 130), ENDS, ENDS)
def test_the_same_tokens_are_kept(scores: Scores, keep: int, first: int, last: int) -> None:
    expected = selected(torch.from_numpy(scores), keep, first, last)
    assert select(scores, keep, first, last).tolist() == expected.tolist()


@given(shapes, SEEDS)
def test_the_same_bytes_are_written(shape: ChunkShape, seed: int) -> None:
    """Cases 27 and 28: whatever the bits of a row are."""
    whole, kept = any_rows(shape, seed), any_kept(shape, seed)
    out = np.full(longest_payload(shape), 0xA5, np.uint8)
    length = pack([flat(whole)], shape, kept, out)
    assert out[:length].tobytes() == reference_payload(whole, kept)


@given(shapes, SEEDS)
def test_the_same_rows_are_read(shape: ChunkShape, seed: int) -> None:
    whole, kept = any_rows(shape, seed), any_kept(shape, seed)
    payload = np.frombuffer(reference_payload(whole, kept), np.uint8)
    found = read_kept(payload, shape)
    width = shape.head_dim * shape.dtype.itemsize
    of_layers = unpacked(
        torch.from_numpy(payload.copy()), shape.parts, torch.from_numpy(found.mask), shape.heads, width
    )
    sinks = [np.zeros(layer.shape, np.uint8).view(element_dtype(shape.dtype)) for layer in of_layers]
    unpack(payload, shape, found, [flat(sink) for sink in sinks if sink.size])
    for sink, layer in zip(sinks, of_layers, strict=True):
        assert sink.tobytes() == layer.numpy().tobytes()
