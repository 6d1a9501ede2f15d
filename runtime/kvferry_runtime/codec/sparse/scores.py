"""What a token is worth, from the attention that it gets. Pure. Where only keys are at hand: `host_scores`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.base import ChunkShape, Rows
from kvferry_runtime.codec.rows import row_count
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


def key_shape(keys: Rows, shape: LayerShape) -> ChunkShape:
    """Of the keys of all tokens of one layer.

    Raises:
        CodecRefused: opaque bytes, which have no direction.
    """
    if shape.dtype is KvDtype.UINT8:
        raise CodecRefused(f"{shape.dtype.value} rows are opaque bytes: they cannot be compared with each other")
    return ChunkShape(1, 1, row_count(keys) // shape.heads, shape.heads, shape.head_dim, shape.dtype)
