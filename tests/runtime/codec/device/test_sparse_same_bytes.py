"""Sparse methods on a GPU, in Triton's interpreter, choose, write and read as the oracle does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from device_kv import Elements, Pages, pages_of
from kv_rows import FLOAT_DTYPES, outlier_rows, rows_of
from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import STATUS_WORDS
from kvferry_runtime.codec.device.sparse import choose, pack, unpack
from kvferry_runtime.codec.device.sparse_scores import from_attention, from_keys
from kvferry_runtime.codec.sparse import scores
from kvferry_runtime.codec.sparse.payload import KeptTokens, longest_payload, read_kept
from kvferry_runtime.codec.sparse.reference import key_scores, selected, unpacked
from kvferry_runtime.codec.sparse.selection import Scores
from kvferry_runtime.codec.torch_rows import float_tensor
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import KvDtype
from sparse_chunks import any_kept, any_rows, flat, reference_payload, scores_of, shapes
from sparse_on_device import choices_of, packed_on_device

SEEDS = st.integers(0, 1 << 32)
ENDS = st.integers(0, 40)
BLOCK_TOKENS = 4


def chunk_of(shape: ChunkShape, seed: int, head_first: bool = False) -> tuple[Elements, KeptTokens, Pages]:
    whole, kept = any_rows(shape, seed), any_kept(shape, seed)
    kept = replace(kept, before=kept.before % 50)
    return whole, kept, pages_of(flat(whole), shape, BLOCK_TOKENS, seed % 7, head_first)


@settings(max_examples=60, deadline=None)
@given(scores_of, st.integers(0, 130), ENDS, ENDS)
def test_the_same_tokens_are_kept(worth: Scores, keep: int, first: int, last: int) -> None:
    choice = choose(torch.from_numpy(worth), keep, first, last)
    expected = selected(torch.from_numpy(worth), keep, first, last)
    assert choice.mask.bool().tolist() == expected.tolist()
    assert choice.ranks.tolist() == [0, *expected.cumsum(0).tolist()]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_keys_are_worth_what_they_are_to_the_oracle(dtype: KvDtype) -> None:
    """But for the last bits of fp32; NaN and infinities count as zeros. Cases 27 and 28."""
    shape = ChunkShape(1, 2, 60, 2, 24, dtype)
    rows = outlier_rows(shape.rows, shape.head_dim, dtype, seed=3)
    rows[4], rows[7, 3] = 0, rows_of([[float("nan")]], dtype)[0, 0]
    rows[8:10] = rows_of([[float("inf")], [float("-inf")]], dtype)
    keys = float_tensor(rows[: shape.rows // 2].copy(), dtype).reshape(shape.tokens, shape.heads, shape.head_dim)
    pages = pages_of(rows, shape, BLOCK_TOKENS)
    found = from_keys(pages.device_rows(), shape)
    torch.testing.assert_close(found, key_scores(keys), atol=2e-6, rtol=0)


@settings(max_examples=10)
@given(st.integers(1, 3), st.integers(1, 40), SEEDS)
def test_attention_is_worth_what_it_is_to_the_host(heads: int, tokens: int, seed: int) -> None:
    mass = np.random.default_rng(seed).random((heads, tokens), np.float32)
    found = from_attention(torch.from_numpy(mass)).numpy()
    np.testing.assert_allclose(found, scores.from_attention(mass), atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(shapes, SEEDS, st.booleans())
def test_the_same_bytes_are_written(shape: ChunkShape, seed: int, head_first: bool) -> None:
    """Cases 27 to 29: any bits, any shape, blocks in any order, a chunk that starts and ends within a block."""
    whole, kept, pages = chunk_of(shape, seed, head_first)
    assert packed_on_device(pages, kept) == reference_payload(whole, kept)


def test_a_wide_chunk_of_many_programs() -> None:
    shape = ChunkShape(2, 2, 300, 2, 64, KvDtype.BF16)
    whole, kept, pages = chunk_of(shape, 1)
    assert packed_on_device(pages, kept) == reference_payload(whole, kept)


@settings(max_examples=25, deadline=None)
@given(shapes, SEEDS)
def test_the_same_rows_are_read(shape: ChunkShape, seed: int) -> None:
    """Each layer's kept tokens land in its own cache, from any place within a block on."""
    whole, kept, _ = chunk_of(shape, seed)
    payload = reference_payload(whole, kept)
    content = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    found = read_kept(np.frombuffer(payload, np.uint8), shape)
    width = shape.head_dim * shape.dtype.itemsize
    expected = unpacked(content, shape.parts, torch.from_numpy(found.mask), shape.heads, width)
    sinks = [
        pages_of(flat(np.zeros_like(whole[layer][:, :count])), replace(shape, layers=1, tokens=count), BLOCK_TOKENS)
        if count
        else None
        for layer, count in enumerate(found.counts.tolist())
    ]
    status = torch.full((STATUS_WORDS,), -1, dtype=torch.int32)
    unpack(content, shape, found, [None if sink is None else sink.device_rows() for sink in sinks], status)
    assert status.tolist() == [0, 0]
    for sink, layer in zip(sinks, expected, strict=True):
        if sink is not None:
            assert b"".join(part.tobytes() for part in sink.rows()) == layer.numpy().tobytes()


def test_a_buffer_that_may_be_too_small_is_refused() -> None:
    shape = ChunkShape(1, 1, 8, 1, 4, KvDtype.BF16)
    _, kept, pages = chunk_of(shape, 3)
    choices, start = choices_of(kept)
    small = torch.zeros(longest_payload(shape) - 1, dtype=torch.uint8)
    with pytest.raises(LayoutError, match="the buffer has"):
        pack(pages.device_rows(), shape, choices, start, small, torch.zeros(STATUS_WORDS, dtype=torch.int32))
