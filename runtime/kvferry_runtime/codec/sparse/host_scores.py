"""Scores of tokens from their keys, on host memory, compiled."""

from __future__ import annotations

import numpy as np

from kvferry_runtime.codec.base import Rows
from kvferry_runtime.codec.host.addresses import address_of, address_table, line_aligned
from kvferry_runtime.codec.host.elements import KINDS
from kvferry_runtime.codec.host.lanes import LANES
from kvferry_runtime.codec.rows import check_rows
from kvferry_runtime.codec.sparse import host_scores_kernels as kernels
from kvferry_runtime.codec.sparse.scores import key_shape
from kvferry_runtime.codec.sparse.selection import Scores
from kvferry_runtime.layout import LayerShape


def from_keys(keys: Rows, shape: LayerShape) -> Scores:
    """How little a token's keys point where the layer's keys point on average (arXiv 2504.15364).

    keys: rows of part 0 of all tokens. The cosine to the mean of the unit keys, negated, averaged over the heads. What
    is no finite number counts as zero. Differs from `codec.sparse.reference` in the last bits of fp32 alone.

    Raises:
        CodecRefused: opaque bytes, which have no direction.
        LayoutError: the arrays are no rows of this kind.
    """
    chunk = key_shape(keys, shape)
    check_rows(keys, chunk)
    addresses, counts = address_table(keys)
    heads, padded = shape.heads, -(-shape.head_dim // LANES) * LANES
    # what turns a row into its unit vector, in two steps, as one factor may not be a fp32
    factors = np.empty((chunk.rows, 2), np.float32)
    sums = np.zeros((heads, padded), np.float64)
    room = line_aligned((LANES + (heads + 1) * padded) * np.dtype(np.float32).itemsize)
    table = KINDS[shape.dtype], addresses, counts, heads, shape.head_dim
    kernels.sum_unit_rows(*table, address_of(room), factors, sums)
    lengths = np.sqrt(np.square(sums).sum(axis=1, keepdims=True))
    means = (sums / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    scores = np.empty(chunk.tokens, np.float32)
    kernels.differences(*table, address_of(room), factors, means, scores)
    return scores
