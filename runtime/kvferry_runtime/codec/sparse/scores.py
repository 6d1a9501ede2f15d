"""What a token is worth, where the engine knows the attention it gets, and where only its keys are at hand. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.base import Rows
from kvferry_runtime.codec.sparse.selection import Scores
from kvferry_runtime.errors import CodecRefused
from kvferry_runtime.layout import KvDtype, LayerShape

Mass = npt.NDArray[np.float32]
"""[heads, tokens]: attention that observed queries pay to each token, added up over those that share a KV head."""

NEIGHBOURS = 5
"""Tokens over which a score is spread, itself in the middle: what stands beside a token that is looked at is part of
the same phrase. As in the published observation-window methods (arXiv 2404.14469)."""


def from_attention(mass: Mass) -> Scores:
    """The mean mass of a token's neighbourhood, averaged over the heads, as all of them keep the same tokens."""
    reach = NEIGHBOURS // 2
    padded = np.pad(mass, ((0, 0), (reach, reach)))
    spread = np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS, axis=1).mean(axis=2)
    scores: Scores = spread.mean(axis=0, dtype=np.float32)
    return scores


def from_keys(keys: Rows, shape: LayerShape) -> Scores:
    """How little a token's keys point where the layer's keys point on average (arXiv 2504.15364).

    keys: rows of part 0 of all tokens. The cosine to the mean of the unit keys, negated, averaged over the heads.

    Raises:
        CodecRefused: opaque bytes, which have no direction.
    """
    values = np.concatenate([_floats(array, shape.dtype) for array in keys]).reshape(-1, shape.heads, shape.head_dim)
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    # scaled by the largest value first, as squares of large keys do not fit into fp32
    largest = np.abs(values).max(axis=2, keepdims=True)
    values /= np.where(largest > 0, largest, 1)
    lengths = np.sqrt(np.square(values).sum(axis=2, keepdims=True))
    unit = values / np.where(lengths > 0, lengths, 1)
    mean = unit.mean(axis=0)
    mean /= np.maximum(np.sqrt(np.square(mean).sum(axis=1, keepdims=True)), np.finfo(np.float32).tiny)
    scores: Scores = -np.einsum("thd,hd->th", unit, mean).mean(axis=1, dtype=np.float32)
    return scores


def _floats(array: npt.NDArray[np.generic], dtype: KvDtype) -> npt.NDArray[np.float32]:
    if dtype is KvDtype.BF16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    if dtype is KvDtype.FP16:
        return array.view(np.float16).astype(np.float32)
    if dtype is KvDtype.FP32:
        return array.view(np.float32)
    raise CodecRefused(f"{dtype.value} rows are opaque bytes: they cannot be compared with each other")
