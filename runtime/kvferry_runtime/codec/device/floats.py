"""bf16, fp16 and fp32 words as fp32 values and back, inside kernels.

Rounding is done on the bits: Triton's own casts differ between the interpreter and a GPU.
"""

# The arguments of kernels have Triton's own types, and their constants are upper case as in Triton's own.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

from __future__ import annotations

import triton.language as tl

from kvferry_runtime.codec.device.launch import BF16, FP16, kernel

INFINITY_BITS = tl.constexpr(0x7F800000)

_FP16_REBIAS = tl.constexpr((127 - 15) << 23)
_FP16_SMALLEST_NORMAL = tl.constexpr((127 - 14) << 23)
_FP16_SMALLEST_NORMAL_VALUE = tl.constexpr(2.0**-14)
_HALF_BITS = tl.constexpr(0x3F000000)
_SIGN = tl.constexpr(0x80000000)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@kernel
def fp32_bits(words, KIND: tl.constexpr):
    """uint32 bits of the fp32 values of `words`; infinity for every infinity and NaN of fp16."""
    bits = words.to(tl.uint32)
    if KIND == BF16:
        bits = bits << 16
    elif KIND == FP16:
        magnitude = (bits & 0x7FFF) << 13
        normal = magnitude + _FP16_REBIAS
        # a subnormal is the fraction of the smallest normal, less that normal
        with_normal = (magnitude + _FP16_SMALLEST_NORMAL).to(tl.float32, bitcast=True)
        subnormal = (with_normal - _FP16_SMALLEST_NORMAL_VALUE).to(tl.uint32, bitcast=True)
        finite = tl.where(magnitude >= (1 << 23), normal, subnormal)
        bits = tl.where(magnitude >= (0x7C00 << 13), INFINITY_BITS, finite) | ((bits & 0x8000) << 16)
    return bits


@kernel
def words_of(values, KIND: tl.constexpr):
    """Finite fp32 values rounded to nearest even; what rounding would make infinite saturates in fp32."""
    bits = values.to(tl.uint32, bitcast=True)
    magnitude = bits & _MAGNITUDE
    if KIND == BF16:
        words = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.uint16)
    elif KIND == FP16:
        normal = (magnitude - _FP16_REBIAS + 0xFFF + ((magnitude >> 13) & 1)) >> 13
        # adding 0.5 rounds a magnitude below the smallest normal to a multiple of 2^-24, which is its code
        with_half = (magnitude.to(tl.float32, bitcast=True) + 0.5).to(tl.uint32, bitcast=True)
        code = tl.where(magnitude >= _FP16_SMALLEST_NORMAL, normal, with_half - _HALF_BITS)
        words = (code | ((bits & _SIGN) >> 16)).to(tl.uint16)
    else:
        words = tl.minimum(magnitude, INFINITY_BITS - 1) | (bits & _SIGN)
    return words


@kernel
def largest_magnitude(bits):
    """[rows] fp32 bits of the largest magnitude of each row of [rows, width] fp32 bits; padding must be 0."""
    return tl.max(bits & _MAGNITUDE, axis=1)
