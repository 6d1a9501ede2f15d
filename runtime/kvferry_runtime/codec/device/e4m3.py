"""fp32 values as e4m3fn bytes and back, inside kernels; the arithmetic is that of the host's kernels."""

# The arguments of kernels have Triton's own types, and their constants are upper case as in Triton's own.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton.language as tl

from kvferry_runtime.codec.device.floats import INFINITY_BITS
from kvferry_runtime.codec.device.launch import kernel

# Adding 2^(e + 20) to a magnitude in [2^e, 2^(e + 1)) rounds it to a multiple of 2^(e - 3), ties to even, and leaves
# the multiple (8 to 16: a carry moves into the exponent) in the low bits; below 2^-6, with e = -6, it is 0 to 8. The
# code is that plus 8 * (e + 6). The addend's own low bits hold what makes up the difference between 8 * (e + 6) and
# its exponent field shifted right by 20, modulo 256; the number is even, so ties stay as they are.
_SMALLEST_NORMAL = tl.constexpr((127 - 6) << 23)
_SMALLEST_NORMAL_VALUE = tl.constexpr(2.0**-6)
_ADDEND = tl.constexpr((20 << 23) + (-(8 * (127 - 6) + (20 << 3))) % 256)
_REBIAS = tl.constexpr((127 - 7) << 23)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@kernel
def e4m3_codes(scaled):
    """fp32 values of at most 448, give or take their rounding, as e4m3fn bytes."""
    bits = scaled.to(tl.uint32, bitcast=True)
    addend = tl.maximum(bits & INFINITY_BITS, _SMALLEST_NORMAL) + _ADDEND
    rounded = (bits & _MAGNITUDE).to(tl.float32, bitcast=True) + addend.to(tl.float32, bitcast=True)
    magnitude = rounded.to(tl.uint32, bitcast=True) + (addend >> 20)
    return ((magnitude | ((bits >> 24) & 0x80)) & 0xFF).to(tl.uint8)


@kernel
def e4m3_values(codes):
    """e4m3fn bytes but NaN as fp32."""
    code = codes.to(tl.uint32)
    magnitude = code & 0x7F
    # a subnormal is twice what it would be as a normal, less the smallest normal
    doubled = ((magnitude << 20) + (_REBIAS + (1 << 23))).to(tl.float32, bitcast=True)
    normal = ((magnitude << 20) + _REBIAS).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 8, doubled - _SMALLEST_NORMAL_VALUE, normal)
    return (value.to(tl.uint32, bitcast=True) | ((code & 0x80) << 24)).to(tl.float32, bitcast=True)
