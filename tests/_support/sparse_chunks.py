"""Chunks of sparse transfers: any bits in the rows, any tokens kept."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from kv_rows import Elements
from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.codec.sparse.payload import KeptTokens
from kvferry_runtime.codec.sparse.reference import packed
from kvferry_runtime.layout import KvDtype

shapes = st.builds(
    ChunkShape,
    layers=st.integers(1, 3),
    parts=st.integers(1, 2),
    tokens=st.integers(1, 40),
    heads=st.integers(1, 3),
    head_dim=st.integers(1, 9),
    dtype=st.sampled_from(KvDtype),
)

scores_of = st.lists(
    st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf"), float("-inf")]),
    min_size=1, max_size=120,
).map(lambda values: np.array(values, np.float32))  # fmt: skip
"""With many ties, NaN and infinities."""


def any_rows(shape: ChunkShape, seed: int) -> Elements:
    """[layers, parts, tokens, heads, head_dim], all bits at random: NaN and infinities of every kind among them."""
    size = (shape.layers, shape.parts, shape.tokens, shape.heads, shape.head_dim * shape.dtype.itemsize)
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).view(element_dtype(shape.dtype))


def any_kept(shape: ChunkShape, seed: int) -> KeptTokens:
    """All, none or some tokens of each layer."""
    dice = np.random.default_rng(seed)
    share = dice.choice([0.0, 0.5, 1.0], (shape.layers, 1))
    return KeptTokens(dice.random((shape.layers, shape.tokens)) < share, dice.integers(0, 1 << 30, shape.layers))


def flat(whole: Elements) -> Elements:
    """[rows, head_dim]"""
    return whole.reshape(-1, whole.shape[-1])


def row_bytes(whole: Elements) -> torch.Tensor:
    """As the reference takes them."""
    return torch.from_numpy(whole.view(np.uint8).copy())


def reference_payload(whole: Elements, kept: KeptTokens) -> bytes:
    return packed(row_bytes(whole), torch.from_numpy(kept.mask), torch.from_numpy(kept.before)).numpy().tobytes()
