"""The compiled codec `fp4` on host memory; the bytes are those of `kvferry_runtime.codec.fp4.reference`.

A group of 16 elements is one vector. Rows are handled a few at a time, one step for all of them after the other: what
a step stores in small pieces is in the cache, not on its way there, when the next one loads it as a vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from kvferry_runtime.codec.fp4 import format as fp4
from kvferry_runtime.codec.host.elements import BF16, FP16, INFINITY
from kvferry_runtime.codec.host.jit import F32, U8, U16, U32, advanced, float_of, inlined, kernel, pointer
from kvferry_runtime.codec.host.lanes import (
    LANES,
    add,
    bits,
    both,
    converted,
    differing,
    divide,
    either,
    floats,
    larger,
    largest,
    load,
    multiply,
    shifted_left,
    shifted_right,
    smaller,
    splat,
    store,
    subtract,
    where_below,
)  # fmt: skip
from kvferry_runtime.layout import KvDtype

_TILE = 8
"""Rows handled at a time."""
assert LANES == fp4.GROUP

_I8 = np.int8
_MAGNITUDE = U32(0x7FFFFFFF)
_ONE = U32(127 << 23)

# fp16: exponent bias 15 against 127 in fp32, 13 mantissa bits fewer
_FP16_REBIAS = U32((127 - 15) << 23)
_FP16_SMALLEST_NORMAL = U32((127 - 14) << 23)
_HALF = U32(126 << 23)

# Adding 2^(e + 22) to a magnitude in [2^e, 2^(e + 1)) rounds it to a multiple of 2^(e - 1), ties to even, and leaves
# the multiple (2 to 4) in the low bits; below 1, with e = 0, it is 0 to 2. The code is that plus 2 * e. The addend's
# own low bits hold what makes up the difference between 2 * e and its exponent field shifted right by 22, modulo 8;
# the number is even, so ties stay as they are.
_E2M1_ADDEND = U32((22 << 23) + (-((127 + 22) << 1)) % 8)
_SIX = U32(0x40C00000)

# The same for e4m3: 2^(e + 20), multiples of 2^(e - 3), 2^-6 in place of 1, and 8 * (e + 6), modulo 256.
_E4M3_ADDEND = U32((20 << 23) + (-(8 * (127 - 6) + (20 << 3))) % 256)
_E4M3_SMALLEST_NORMAL = U32((127 - 6) << 23)
_E4M3_REBIAS = U32((127 - 7) << 23)
_SIXTH = F32(1 / 6)

_E4M3_HALVES = np.array(
    [(code % 8 / 8 * 2.0**-6 if code < 8 else (1 + code % 8 / 8) * 2.0 ** (code // 8 - 7)) / 2 for code in range(127)],
    np.float32,
)
"""Half of what each scale stands for: elements are restored from twice their codes' values, which are integers."""
_SMALLEST_EXPONENT, _EXPONENT_BIAS = U32(fp4.SMALLEST_EXPONENT), fp4.EXPONENT_BIAS
_SMALLEST_SCALE, _LARGEST_SCALE = U32(fp4.SMALLEST_SCALE), U32(fp4.LARGEST_SCALE)
_LARGEST_SCALE_AT_TOP = U32(fp4.LARGEST_SCALE_AT_TOP)
_TOP_EXPONENT, _TOP_EXPONENT_FP16 = U32(fp4.LARGEST_EXPONENT[KvDtype.FP32]), U32(fp4.LARGEST_EXPONENT[KvDtype.FP16])


@inlined
def _widened_bf16(words: Any) -> Any:
    return floats(shifted_left(converted(words, U32(0)), splat(U32(16))))


@inlined
def _widened_fp16(words: Any) -> Any:
    """Finite fp16 as fp32. A subnormal is the fraction of the smallest normal, less that normal."""
    wide = converted(words, U32(0))
    magnitude = shifted_left(both(wide, splat(U32(0x7FFF))), splat(U32(13)))
    normal = add(magnitude, splat(_FP16_REBIAS))
    fraction = floats(add(magnitude, splat(_FP16_SMALLEST_NORMAL)))
    subnormal = bits(subtract(fraction, splat(float_of(_FP16_SMALLEST_NORMAL))))
    sign = shifted_left(both(wide, splat(U32(0x8000))), splat(U32(16)))
    return floats(either(where_below(magnitude, splat(U32(1 << 23)), subnormal, normal), sign))


@inlined
def _widened_fp32(words: Any) -> Any:
    return floats(words)


@inlined
def _largest_bf16(words: Any) -> Any:
    """Bits, as fp32, of the largest magnitude."""
    return U32(U32(largest(both(words, splat(U16(0x7FFF))))) << U32(16))


@inlined
def _largest_fp16(words: Any) -> Any:
    top = U32(largest(both(words, splat(U16(0x7FFF)))))
    if top >= U32(0x7C00):
        return INFINITY
    return largest(bits(_widened_fp16(splat(U16(top)))))


@inlined
def _largest_fp32(words: Any) -> Any:
    return largest(both(words, splat(_MAGNITUDE)))


@inlined
def _narrowed_bf16(values: Any) -> Any:
    """Products of a code and a scale are exact in bf16."""
    return converted(shifted_right(bits(values), splat(U32(16))), U16(0))


@inlined
def _narrowed_fp16(values: Any) -> Any:
    """Normal ones are exact. Adding 0.5 rounds a smaller magnitude to a multiple of 2^-24, which is its code."""
    signed = bits(values)
    magnitude = both(signed, splat(_MAGNITUDE))
    normal = shifted_right(subtract(magnitude, splat(_FP16_REBIAS)), splat(U32(13)))
    subnormal = subtract(bits(add(floats(magnitude), splat(float_of(_HALF)))), splat(_HALF))
    code = where_below(magnitude, splat(_FP16_SMALLEST_NORMAL), subnormal, normal)
    return converted(either(code, both(shifted_right(signed, splat(U32(16))), splat(U32(0x8000)))), U16(0))


@inlined
def _narrowed_fp32(values: Any) -> Any:
    return bits(values)


@inlined
def _e2m1(values: Any) -> Any:
    signed = bits(values)
    magnitude = smaller(both(signed, splat(_MAGNITUDE)), splat(_SIX))
    addend = add(larger(both(magnitude, splat(INFINITY)), splat(_ONE)), splat(_E2M1_ADDEND))
    code = add(bits(add(floats(magnitude), floats(addend))), shifted_right(addend, splat(U32(22))))
    sign = both(shifted_right(signed, splat(U32(28))), splat(U32(8)))
    return converted(either(both(code, splat(U32(7))), sign), U8(0))


@inlined
def _doubled(codes: Any) -> Any:
    """Twice the values of codes (int8), which are 0, 1, 2, 3, 4, 6, 8, 12: the largest of three straight lines."""
    code = both(codes, splat(_I8(7)))
    double = add(code, code)
    steep = larger(subtract(double, splat(_I8(4))), subtract(add(double, double), splat(_I8(16))))
    magnitude = larger(code, steep)
    negative = subtract(splat(_I8(0)), shifted_right(codes, splat(_I8(3))))
    return subtract(differing(magnitude, negative), negative)


@inlined
def _e4m3(values: Any) -> Any:
    """Codes (uint32) of values from 0 to 448."""
    addend = add(larger(both(bits(values), splat(INFINITY)), splat(_E4M3_SMALLEST_NORMAL)), splat(_E4M3_ADDEND))
    code = add(bits(add(values, floats(addend))), shifted_right(addend, splat(U32(20))))
    return both(code, splat(U32(0xFF)))


@inlined
def _e4m3_values(codes: Any) -> Any:
    """A subnormal is twice what it would be as a normal, less the smallest normal."""
    normal = add(shifted_left(codes, splat(U32(20))), splat(_E4M3_REBIAS))
    fraction = floats(add(normal, splat(U32(1 << 23))))
    subnormal = bits(subtract(fraction, splat(float_of(_E4M3_SMALLEST_NORMAL))))
    return floats(where_below(codes, splat(U32(8)), subnormal, normal))


@inlined
def _group_of(words: Any, group: Any, head_dim: Any, scratch: Any) -> Any:
    """Where a vector of this group can be loaded: `scratch`, whose other elements are zero, if the group is shorter."""
    start = group * LANES
    if start + LANES <= head_dim:
        return advanced(words, start)
    for i in range(head_dim - start):
        scratch[i] = words[start + i]
    return scratch


@inlined
def _magnitudes(largest_of: Any, words: Any, head_dim: Any, groups: Any, scratch: Any, magnitudes: Any) -> Any:
    """Bits of the largest magnitude of each group; return that of the row."""
    top = U32(0)
    for group in range(groups):
        magnitude = largest_of(load(_group_of(words, group, head_dim, scratch)))
        magnitudes[group] = magnitude
        top = max(top, magnitude)
    return top


@inlined
def _scales(exponent: Any, top_exponent: Any, groups: Any, floats_of_groups: Any, bytes_of_groups: Any) -> None:
    """Turn the groups' largest magnitudes into the factors of their elements, and fill the scales."""
    inverse = float_of(U32(U32(U32(127 + _EXPONENT_BIAS) - exponent) << U32(23)))
    unit = float_of(U32(U32(exponent - U32(_EXPONENT_BIAS - 127)) << U32(23)))
    limit = _LARGEST_SCALE_AT_TOP if exponent == top_exponent else _LARGEST_SCALE
    for start in range(0, groups, LANES):
        place = advanced(floats_of_groups, start)
        scaled = multiply(multiply(load(place), splat(inverse)), splat(_SIXTH))
        codes = smaller(larger(_e4m3(scaled), splat(_SMALLEST_SCALE)), splat(limit))
        store(place, divide(splat(F32(1)), multiply(_e4m3_values(codes), splat(unit))))
        store(advanced(bytes_of_groups, start), converted(codes, U8(0)))


@inlined
def _quantise(
    widened: Any, words: Any, head_dim: Any, groups: Any, scratch: Any, factors: Any, codes: Any
) -> None:  # fmt: skip
    """Codes, one in a byte."""
    for group in range(groups):
        values = widened(load(_group_of(words, group, head_dim, scratch)))
        store(advanced(codes, group * LANES), _e2m1(multiply(values, splat(factors[group]))))


@inlined
def _pack(codes: Any, width: Any, packed: Any) -> None:
    """Two codes in a byte. The last vector overlaps the one before it, where the width is no multiple."""
    if width < LANES:
        for i in range(width):
            packed[i] = U8(codes[i] | U8(codes[i + width] << U8(4)))
        return
    for start in range(0, width, LANES):
        place = min(start, width - LANES)
        high = shifted_left(load(advanced(codes, place + width)), splat(U8(4)))
        store(advanced(packed, place), either(load(advanced(codes, place)), high))


@inlined
def _unpack(packed: Any, width: Any, codes: Any) -> None:
    if width < LANES:
        for i in range(width):
            codes[i] = U8(packed[i] & U8(15))
            codes[i + width] = U8(packed[i] >> U8(4))
        return
    for start in range(0, width, LANES):
        place = min(start, width - LANES)
        pairs = load(advanced(packed, place))
        store(advanced(codes, place), both(pairs, splat(U8(15))))
        store(advanced(codes, place + width), shifted_right(pairs, splat(U8(4))))


@inlined
def _restore(
    narrowed: Any, codes: Any, unit: Any, scales: Any, head_dim: Any, groups: Any, words: Any, scratch: Any
) -> None:  # fmt: skip
    for group in range(groups):
        start = group * LANES
        factor = F32(_E4M3_HALVES[scales[group]] * unit)
        values = multiply(converted(_doubled(load(advanced(codes, start))), F32(0)), splat(factor))
        whole = start + LANES <= head_dim
        store(advanced(words, start) if whole else scratch, narrowed(values))
        if not whole:
            for i in range(head_dim - start):
                words[start + i] = scratch[i]


@inlined
def _encode(
    widened: Any, largest_of: Any, word: Any, top_exponent: Any, addresses: Any, counts: Any, head_dim: Any, places: Any
) -> Any:
    width, groups = (head_dim + 1) // 2, (head_dim + LANES - 1) // LANES
    padded = (groups + LANES - 1) // LANES * LANES
    packed, scales, exponents = pointer(places[0], U8(0)), pointer(places[1], U8(0)), pointer(places[2], U8(0))
    magnitudes, factors, scratch = pointer(places[3], U32(0)), pointer(places[3], F32(0)), pointer(places[6], word)
    codes, scale_bytes = pointer(places[4], U8(0)), pointer(places[5], U8(0))
    row = 0
    for segment in range(addresses.size):
        for first in range(0, counts[segment], _TILE):
            start = advanced(pointer(addresses[segment], word), first * head_dim)
            rows = min(_TILE, counts[segment] - first)
            for r in range(rows):
                words = advanced(start, r * head_dim)
                top = _magnitudes(largest_of, words, head_dim, groups, scratch, advanced(magnitudes, r * padded))
                exponents[row + r] = U8(max(U32(top >> U32(23)), _SMALLEST_EXPONENT))
                if top >= INFINITY:
                    return row + r
            for r in range(rows):
                of_row = advanced(scale_bytes, r * padded)
                _scales(U32(exponents[row + r]), top_exponent, groups, advanced(factors, r * padded), of_row)
            for r in range(rows):
                for group in range(groups):
                    scales[(row + r) * groups + group] = scale_bytes[r * padded + group]
                of_row = advanced(codes, r * groups * LANES)
                words = advanced(start, r * head_dim)
                _quantise(widened, words, head_dim, groups, scratch, advanced(factors, r * padded), of_row)
            for r in range(rows):
                _pack(advanced(codes, r * groups * LANES), width, advanced(packed, (row + r) * width))
            row += rows
    return -1


@inlined
def _decode(narrowed: Any, word: Any, addresses: Any, counts: Any, head_dim: Any, places: Any) -> None:
    width, groups = (head_dim + 1) // 2, (head_dim + LANES - 1) // LANES
    packed, scales, exponents = pointer(places[0], U8(0)), pointer(places[1], U8(0)), pointer(places[2], U8(0))
    unsigned, codes, scratch = pointer(places[4], U8(0)), pointer(places[4], _I8(0)), pointer(places[6], word)
    row = 0
    for segment in range(addresses.size):
        for first in range(0, counts[segment], _TILE):
            start = advanced(pointer(addresses[segment], word), first * head_dim)
            rows = min(_TILE, counts[segment] - first)
            for r in range(rows):
                _unpack(advanced(packed, (row + r) * width), width, advanced(unsigned, r * groups * LANES))
            for r in range(rows):
                unit = float_of(U32(U32(U32(exponents[row + r]) - U32(_EXPONENT_BIAS - 127)) << U32(23)))
                of_row = advanced(codes, r * groups * LANES)
                factors = advanced(scales, (row + r) * groups)
                _restore(narrowed, of_row, unit, factors, head_dim, groups, advanced(start, r * head_dim), scratch)
            row += rows


_ARGUMENTS = (types.int64, types.uint64[::1], types.int64[::1], types.int64, types.uint64[::1])


@kernel(types.int64(*_ARGUMENTS))
def encode(kind: Any, addresses: Any, counts: Any, head_dim: Any, places: Any) -> Any:
    """Make codes, scales and exponents of `counts[i]` rows at `addresses[i]`.

    places: addresses of codes, scales, exponents, and of four pieces of memory to work in, see `working_bytes`; the
        last one is all zeros.

    Returns -1, or the number of the first row that holds a NaN or an infinity.
    """
    if kind == BF16:
        return _encode(_widened_bf16, _largest_bf16, U16(0), _TOP_EXPONENT, addresses, counts, head_dim, places)
    if kind == FP16:
        return _encode(_widened_fp16, _largest_fp16, U16(0), _TOP_EXPONENT_FP16, addresses, counts, head_dim, places)
    return _encode(_widened_fp32, _largest_fp32, U32(0), _TOP_EXPONENT, addresses, counts, head_dim, places)


@kernel(types.void(*_ARGUMENTS))
def decode(kind: Any, addresses: Any, counts: Any, head_dim: Any, places: Any) -> Any:
    """Fill `counts[i]` rows at `addresses[i]`; arguments as in `encode`."""
    if kind == BF16:
        _decode(_narrowed_bf16, U16(0), addresses, counts, head_dim, places)
    elif kind == FP16:
        _decode(_narrowed_fp16, U16(0), addresses, counts, head_dim, places)
    else:
        _decode(_narrowed_fp32, U32(0), addresses, counts, head_dim, places)


def working_bytes(head_dim: int) -> tuple[int, int, int, int]:
    """Sizes of the pieces of memory that kernels work in: fp32 of groups, codes, scales, one group."""
    groups = -(-head_dim // LANES)
    padded = -(-groups // LANES) * LANES
    return _TILE * padded * 4, _TILE * groups * LANES, _TILE * padded, LANES * 4
