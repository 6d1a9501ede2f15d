"""The compiled codec `int8` on host memory; the bytes are those of `kvferry_runtime.codec.int8.reference`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from kvferry_runtime.codec.host.elements import (
    BF16,
    FP16,
    as_fp32_bf16,
    as_fp32_fp16,
    as_fp32_fp32,
    magnitude_16,
    magnitude_32,
    narrowed_bf16,
    narrowed_fp16,
    narrowed_fp32,
    widened_bf16,
    widened_fp16,
    widened_fp32,
)  # fmt: skip
from kvferry_runtime.codec.host.jit import F32, U8, U16, U32, bits_of, inlined, kernel
from kvferry_runtime.codec.int8 import format as int8
from kvferry_runtime.codec.scaled.host_loops import decode_rows, encode_rows

# adding 1.5 * 2^23 leaves the integer nearest to a small float in the low bits of the sum, ties to even
_ROUND_TO_INTEGER = F32(1.5 * 2**23)
_TOP, _BOUND = F32(int8.LARGEST_CODE), F32(int8.SMALLEST_SCALE)
_ODD = U8(0xFF)
_SHORT_ROW = 64
"""The usual width of small models' heads. With a constant length, loops over so few elements are a fifth faster."""


@inlined
def _quantised(scaled: Any) -> Any:
    """No element needs saturation: magnitude times factor is 127, give or take its rounding."""
    return U8(bits_of(F32(scaled + _ROUND_TO_INTEGER)))


@inlined
def _restored(code: Any, scale: Any) -> Any:
    return F32(F32(np.int8(code)) * scale)


@inlined
def _oddness(code: Any) -> Any:
    return U8(code ^ U8(~int8.VOID_CODE & 0xFF))


_FLOATS = types.float32[::1]
_ARGUMENTS = (types.int64, types.uint64[::1], types.int64[::1], types.int64, types.uint64, _FLOATS)


@kernel(types.int64(*_ARGUMENTS))
def encode(kind: Any, addresses: Any, counts: Any, head_dim: Any, codes: Any, scales: Any) -> Any:
    """Fill `scales` [rows], and [rows, head_dim] at the address `codes`, from `counts[i]` rows at `addresses[i]`.

    Returns -1, or the number of the first row that holds a NaN or an infinity.
    """
    if kind == BF16 and head_dim == _SHORT_ROW:
        return encode_rows(
            magnitude_16, as_fp32_bf16, widened_bf16, _quantised, U16(0), _TOP, _BOUND,
            addresses, counts, _SHORT_ROW, codes, scales,
        )  # fmt: skip
    if kind == BF16:
        return encode_rows(
            magnitude_16, as_fp32_bf16, widened_bf16, _quantised, U16(0), _TOP, _BOUND,
            addresses, counts, head_dim, codes, scales,
        )  # fmt: skip
    if kind == FP16:
        return encode_rows(
            magnitude_16, as_fp32_fp16, widened_fp16, _quantised, U16(0), _TOP, _BOUND,
            addresses, counts, head_dim, codes, scales,
        )  # fmt: skip
    return encode_rows(
        magnitude_32, as_fp32_fp32, widened_fp32, _quantised, U32(0), _TOP, _BOUND,
        addresses, counts, head_dim, codes, scales,
    )  # fmt: skip


@kernel(types.boolean(*_ARGUMENTS))
def decode(kind: Any, addresses: Any, counts: Any, head_dim: Any, codes: Any, scales: Any) -> Any:
    """Fill `counts[i]` rows at `addresses[i]`; arguments as in `encode`. False: a code stands for no value."""
    if kind == BF16:
        return decode_rows(narrowed_bf16, _restored, _oddness, _ODD, U16(0), addresses, counts, head_dim, codes, scales)
    if kind == FP16:
        return decode_rows(narrowed_fp16, _restored, _oddness, _ODD, U16(0), addresses, counts, head_dim, codes, scales)
    return decode_rows(narrowed_fp32, _restored, _oddness, _ODD, U32(0), addresses, counts, head_dim, codes, scales)
