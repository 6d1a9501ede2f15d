"""Elements of each dtype in compiled loops: widened to fp32, narrowed from it, and their magnitudes.

Each of the three dtypes has the same four parts. A loop over a row that is made of them vectorises as a whole, with no
buffer of fp32 in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvferry_runtime.codec.host.jit import F32, U16, U32, bits_of, float_of, inlined
from kvferry_runtime.layout import KvDtype

BF16, FP16, FP32 = 0, 1, 2
KINDS: Mapping[KvDtype, int] = {KvDtype.BF16: BF16, KvDtype.FP16: FP16, KvDtype.FP32: FP32}
"""How kernels are told the dtype."""

INFINITY = U32(0x7F800000)
SIGN = U32(0x80000000)

# fp16: exponent bias 15 against 127 in fp32, 13 mantissa bits fewer
_FP16_REBIAS = U32((127 - 15) << 23)
_FP16_SMALLEST_NORMAL = U32((127 - 14) << 23)


@inlined
def magnitude_16(word: Any) -> Any:
    """Of bf16 and fp16: an integer that grows with the magnitude."""
    return U16(word & U16(0x7FFF))


@inlined
def magnitude_32(word: Any) -> Any:
    return U32(word & ~SIGN)


@inlined
def widened_bf16(word: Any) -> Any:
    return float_of(U32(U32(word) << U32(16)))


@inlined
def narrowed_bf16(value: Any) -> Any:
    bits = bits_of(value)
    return U16(U32(bits + U32(0x7FFF) + U32(U32(bits >> U32(16)) & U32(1))) >> U32(16))


@inlined
def widened_fp16(word: Any) -> Any:
    """A finite fp16 as fp32. A subnormal is the fraction of the smallest normal, less that normal."""
    magnitude = U32(U32(word & U16(0x7FFF)) << U32(13))
    sign = U32(U32(word & U16(0x8000)) << U32(16))
    normal = float_of(U32(magnitude + _FP16_REBIAS))
    subnormal = F32(float_of(U32(magnitude + _FP16_SMALLEST_NORMAL)) - float_of(_FP16_SMALLEST_NORMAL))
    value = normal if magnitude >= U32(1 << 23) else subnormal
    return float_of(U32(bits_of(value) | sign))


@inlined
def narrowed_fp16(value: Any) -> Any:
    """Adding 0.5 rounds a magnitude below the smallest normal to a multiple of 2^-24, which is its code."""
    bits = bits_of(value)
    magnitude = U32(bits & ~SIGN)
    odd = U32(U32(magnitude >> U32(13)) & U32(1))
    normal = U32(U32(magnitude - _FP16_REBIAS + U32(0xFFF) + odd) >> U32(13))
    subnormal = U32(bits_of(F32(float_of(magnitude) + F32(0.5))) - bits_of(F32(0.5)))
    code = normal if magnitude >= _FP16_SMALLEST_NORMAL else subnormal
    return U16(U32(code | U32(U32(bits & SIGN) >> U32(16))))


@inlined
def widened_fp32(word: Any) -> Any:
    return float_of(word)


@inlined
def narrowed_fp32(value: Any) -> Any:
    """A product of the largest scale and code may exceed the largest fp32 by its rounding: that saturates."""
    bits = bits_of(value)
    magnitude = U32(bits & ~SIGN)
    largest = U32(INFINITY - U32(1))
    return U32((magnitude if magnitude < largest else largest) | U32(bits & SIGN))


@inlined
def as_fp32_bf16(magnitude: Any) -> Any:
    """The fp32 bits of a row's largest magnitude; at least those of infinity if it is not finite."""
    return U32(U32(magnitude) << U32(16))


@inlined
def as_fp32_fp16(magnitude: Any) -> Any:
    if magnitude >= U16(0x7C00):
        return INFINITY
    return bits_of(widened_fp16(magnitude))


@inlined
def as_fp32_fp32(magnitude: Any) -> Any:
    return magnitude
