"""The compiled codec `fp8` on host memory; the bytes are those of `kvferry_runtime.codec.fp8.reference`."""

from __future__ import annotations

from typing import Any

from numba import types

from kvferry_runtime.codec.fp8 import format as fp8
from kvferry_runtime.codec.host.elements import (
    BF16,
    FP16,
    INFINITY,
    SIGN,
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
from kvferry_runtime.codec.host.jit import F32, U8, U16, U32, bits_of, float_of, inlined, kernel
from kvferry_runtime.codec.scaled.host_loops import decode_rows, encode_rows

# Adding 2^(e + 20) to a magnitude in [2^e, 2^(e + 1)) rounds it to a multiple of 2^(e - 3), ties to even, and leaves
# the multiple (8 to 16: a carry moves into the exponent) in the low bits; below 2^-6, with e = -6, it is 0 to 8. The
# code is that plus 8 * (e + 6). The addend's own low bits hold what makes up the difference between 8 * (e + 6) and
# its exponent field shifted right by 20, modulo 256; the number is even, so ties stay as they are.
_SMALLEST_NORMAL = U32((127 - 6) << 23)
_ADDEND = U32((20 << 23) + (-(8 * (127 - 6) + (20 << 3))) % 256)
_REBIAS = U32((127 - 7) << 23)
_TOP, _BOUND = F32(fp8.LARGEST_CODE), F32(fp8.SMALLEST_SCALE)
_ODD = U8(fp8.VOID_MAGNITUDE)


@inlined
def quantised(scaled: Any) -> Any:
    """No element needs saturation: magnitude times factor is 448, give or take its rounding."""
    bits = bits_of(scaled)
    power = U32(bits & INFINITY)
    addend = U32((power if power > _SMALLEST_NORMAL else _SMALLEST_NORMAL) + _ADDEND)
    rounded = bits_of(F32(float_of(U32(bits & ~SIGN)) + float_of(addend)))
    magnitude = U32(rounded + U32(addend >> U32(20)))
    return U8(U32(magnitude | U32(U32(bits >> U32(24)) & U32(0x80))))


@inlined
def _restored(code: Any, scale: Any) -> Any:
    """A subnormal is twice what it would be as a normal, less the smallest normal; no fp32 in between is subnormal."""
    magnitude = U32(U32(code) & U32(0x7F))
    subnormal = magnitude < U32(8)
    bits = U32(U32(magnitude << U32(20)) + (_REBIAS + U32(1 << 23) if subnormal else _REBIAS))
    value = F32(float_of(bits) - (float_of(_SMALLEST_NORMAL) if subnormal else F32(0)))
    sign = U32(U32(code & U8(0x80)) << U32(24))
    return float_of(U32(bits_of(F32(value * scale)) | sign))


@inlined
def _oddness(code: Any) -> Any:
    return U8(code & U8(0x7F))


_FLOATS = types.float32[::1]
_ARGUMENTS = (types.int64, types.uint64[::1], types.int64[::1], types.int64, types.uint64, _FLOATS)


@kernel(types.int64(*_ARGUMENTS))
def encode(kind: Any, addresses: Any, counts: Any, head_dim: Any, codes: Any, scales: Any) -> Any:
    """Fill `scales` [rows], and [rows, head_dim] at the address `codes`, from `counts[i]` rows at `addresses[i]`.

    Returns -1, or the number of the first row that holds a NaN or an infinity.
    """
    if kind == BF16:
        return encode_rows(
            magnitude_16, as_fp32_bf16, widened_bf16, quantised, U16(0), _TOP, _BOUND,
            addresses, counts, head_dim, codes, scales,
        )  # fmt: skip
    if kind == FP16:
        return encode_rows(
            magnitude_16, as_fp32_fp16, widened_fp16, quantised, U16(0), _TOP, _BOUND,
            addresses, counts, head_dim, codes, scales,
        )  # fmt: skip
    return encode_rows(
        magnitude_32, as_fp32_fp32, widened_fp32, quantised, U32(0), _TOP, _BOUND,
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
