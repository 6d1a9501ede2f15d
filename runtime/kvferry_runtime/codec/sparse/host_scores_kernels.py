"""The two passes over a layer's keys: their mean direction first, then how far each token is from it.

Keys are never held as fp32 but for one row. Sums run in 16 lanes that are added up at the end, so that they are the
same on every processor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from kvferry_runtime.codec.host.elements import (
    BF16,
    FP16,
    INFINITY,
    as_fp32_bf16,
    as_fp32_fp16,
    as_fp32_fp32,
    magnitude_16,
    magnitude_32,
    widened_bf16,
    widened_fp16,
    widened_fp32,
)  # fmt: skip
from kvferry_runtime.codec.host.jit import F32, U16, U32, advanced, float_of, inlined, kernel, pointer
from kvferry_runtime.codec.host.lanes import LANES, add, load, multiply, splat, store

_TOKENS_TOGETHER = 64
"""Unit rows that are added up in fp32 before their sum goes to fp64."""


@inlined
def _power_for(largest: Any) -> Any:
    """A power of two that brings the largest magnitude (bits of fp32) to 1 or a little more, so that squares fit."""
    exponent = U32(largest >> U32(23))
    return float_of(U32(max(U32(1), U32(U32(254) - exponent)) << U32(23)))


@inlined
def _widen(magnitude: Any, as_fp32: Any, widened: Any, words: Any, head_dim: Any, row: Any, factor: Any) -> None:
    for i in range(head_dim):
        finite = as_fp32(magnitude(words[i])) < INFINITY
        row[i] = F32(widened(words[i]) * factor) if finite else F32(0)


@inlined
def _largest_finite(magnitude: Any, as_fp32: Any, word: Any, words: Any, head_dim: Any) -> Any:
    largest = U32(0)
    for i in range(head_dim):
        bits = as_fp32(magnitude(words[i]))
        largest = max(largest, bits if bits < INFINITY else U32(0))
    return largest


@inlined
def _dot(left: Any, right: Any, padded: Any, lanes: Any) -> Any:
    """Of two rows of fp32, padded with zeros. lanes: room for 16."""
    total = splat(F32(0))
    for start in range(0, padded, LANES):
        total = add(total, multiply(load(advanced(left, start)), load(advanced(right, start))))
    store(lanes, total)
    width = LANES // 2
    while width > 0:
        for i in range(width):
            lanes[i] = F32(lanes[i] + lanes[i + width])
        width //= 2
    return lanes[0]


@inlined
def _sum_unit_rows(
    magnitude: Any, as_fp32: Any, widened: Any, word: Any,
    addresses: Any, counts: Any, heads: Any, head_dim: Any, room: Any, factors: Any, sums: Any,
) -> None:  # fmt: skip
    padded = sums.shape[1]
    lanes = pointer(room, F32(0))
    row = advanced(lanes, LANES)
    together = advanced(row, padded)
    for i in range(LANES + padded + heads * padded):
        lanes[i] = F32(0)
    number = 0
    for segment in range(addresses.size):
        start = pointer(addresses[segment], word)
        for index in range(counts[segment]):
            words = advanced(start, index * head_dim)
            factor = _power_for(_largest_finite(magnitude, as_fp32, word, words, head_dim))
            _widen(magnitude, as_fp32, widened, words, head_dim, row, factor)
            square = _dot(row, row, padded, lanes)
            to_unit = F32(F32(1) / np.sqrt(square)) if square > F32(0) else F32(0)
            factors[number, 0] = factor
            factors[number, 1] = to_unit
            of_head = advanced(together, number % heads * padded)
            for i in range(padded):
                of_head[i] = F32(of_head[i] + F32(row[i] * to_unit))
            number += 1
            if number % (heads * _TOKENS_TOGETHER) == 0 or number == factors.shape[0]:
                _pour(together, sums)


@inlined
def _pour(together: Any, sums: Any) -> None:
    """Add what is in fp32 to the sums and begin anew."""
    heads, padded = sums.shape
    for head in range(heads):
        of_head = advanced(together, head * padded)
        for i in range(padded):
            sums[head, i] += of_head[i]
            of_head[i] = F32(0)


@inlined
def _differences(
    magnitude: Any, as_fp32: Any, widened: Any, word: Any,
    addresses: Any, counts: Any, heads: Any, head_dim: Any, room: Any, factors: Any, means: Any, scores: Any,
) -> None:  # fmt: skip
    padded = means.shape[1]
    lanes = pointer(room, F32(0))
    row = advanced(lanes, LANES)
    mean = advanced(row, padded)
    for i in range(LANES + padded):
        lanes[i] = F32(0)
    for head in range(heads):
        for i in range(padded):
            mean[head * padded + i] = means[head, i]
    number = 0
    total = F32(0)
    for segment in range(addresses.size):
        start = pointer(addresses[segment], word)
        for index in range(counts[segment]):
            head = number % heads
            words = advanced(start, index * head_dim)
            _widen(magnitude, as_fp32, widened, words, head_dim, row, factors[number, 0])
            cosine = F32(_dot(row, advanced(mean, head * padded), padded, lanes) * factors[number, 1])
            total = cosine if head == 0 else F32(total + cosine)
            number += 1
            if head == heads - 1:
                scores[number // heads - 1] = F32(-total / F32(heads))


_KEYS = (
    types.int64,
    types.uint64[::1],
    types.int64[::1],
    types.int64,
    types.int64,
    types.uint64,
    types.float32[:, ::1],
)


@kernel(types.void(*_KEYS, types.float64[:, ::1]))
def sum_unit_rows(
    kind: Any, addresses: Any, counts: Any, heads: Any, head_dim: Any, room: Any, factors: Any, sums: Any
) -> Any:
    """Add each row, at length one, to its head's sum, from `counts[i]` rows at `addresses[i]`.

    room: address of `(heads + 1) * padded + 16` fp32. factors: [rows, 2], filled: by which a row is multiplied to have
    no large value, and then to have length one. sums: [heads, padded], with `head_dim` padded to whole lanes.
    """
    if kind == BF16:
        _sum_unit_rows(
            magnitude_16, as_fp32_bf16, widened_bf16, U16(0),
            addresses, counts, heads, head_dim, room, factors, sums,
        )  # fmt: skip
    elif kind == FP16:
        _sum_unit_rows(
            magnitude_16, as_fp32_fp16, widened_fp16, U16(0),
            addresses, counts, heads, head_dim, room, factors, sums,
        )  # fmt: skip
    else:
        _sum_unit_rows(
            magnitude_32, as_fp32_fp32, widened_fp32, U32(0),
            addresses, counts, heads, head_dim, room, factors, sums,
        )  # fmt: skip


@kernel(types.void(*_KEYS, types.float32[:, ::1], types.float32[::1]))
def differences(
    kind: Any, addresses: Any, counts: Any, heads: Any, head_dim: Any, room: Any, factors: Any, means: Any, scores: Any
) -> Any:
    """Fill `scores` [tokens]: cosine of each row to its head's mean [heads, padded], negated, averaged over heads.

    The other arguments are those of `sum_unit_rows`, with `factors` as it left them.
    """
    if kind == BF16:
        _differences(
            magnitude_16, as_fp32_bf16, widened_bf16, U16(0),
            addresses, counts, heads, head_dim, room, factors, means, scores,
        )  # fmt: skip
    elif kind == FP16:
        _differences(
            magnitude_16, as_fp32_fp16, widened_fp16, U16(0),
            addresses, counts, heads, head_dim, room, factors, means, scores,
        )  # fmt: skip
    else:
        _differences(
            magnitude_32, as_fp32_fp32, widened_fp32, U32(0),
            addresses, counts, heads, head_dim, room, factors, means, scores,
        )  # fmt: skip
