"""The compiled values of `k8v4` on host memory; the bytes are those of `kvferry_runtime.codec.k8v4.reference`.

Rows are handled a few at a time, through a buffer of fp32 that stays in the processor's first cache; there they are
filled up to whole groups with their last element, which changes neither end of a group. One step handles all groups
of these rows after the other: their ends, then their steps and minima, then codes, and at last two codes a byte.
"""

from __future__ import annotations

from typing import Any

from numba import types

from kvferry_runtime.codec.host.elements import (
    BF16,
    FP16,
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
)
from kvferry_runtime.codec.host.jit import F32, U8, U16, U32, advanced, bits_of, float_of, inlined, kernel, pointer
from kvferry_runtime.codec.host.lanes import (
    LANES,
    add,
    bits,
    converted,
    differing,
    either,
    larger,
    largest,
    load,
    multiply,
    splat,
    store,
    subtract,
    where_below,
)
from kvferry_runtime.codec.k8v4 import format as k8v4

GROUP = k8v4.GROUP
_TILE = 8
"""Rows handled at a time."""
assert GROUP == 2 * LANES

_ALL_BITS = U32(0xFFFFFFFF)
_SMALLEST_NORMAL = U32(1 << 23)
_VALUE_LIMIT = U32((127 + 126) << 23)
_LARGEST_CODE, _SMALLEST_STEP = F32(k8v4.LARGEST_CODE), F32(k8v4.SMALLEST_STEP)
_LARGEST_FP16 = F32(65504)

# adding 1.5 * 2^23 leaves the integer nearest to a small float in the low bits of the sum, ties to even
_ROUND_TO_INTEGER = F32(1.5 * 2**23)


@inlined
def _fill(widened: Any, words: Any, head_dim: Any, padded: Any, values: Any) -> None:
    """Widen a row. Subnormals and both zeros become 0."""
    for i in range(head_dim):
        element = bits_of(widened(words[i]))
        values[i] = float_of(element if U32(element & ~SIGN) >= _SMALLEST_NORMAL else U32(0))
    for i in range(head_dim, padded):
        values[i] = values[head_dim - 1]


@inlined
def _ordered(elements: Any) -> Any:
    """Unsigned integers in the order of the floats with these bits."""
    return where_below(elements, splat(SIGN), either(elements, splat(SIGN)), differing(elements, splat(_ALL_BITS)))


@inlined
def _bits_at(place: Any) -> Any:
    """The way back from `_ordered`, of one number."""
    return U32(place ^ SIGN) if place >= SIGN else U32(place ^ _ALL_BITS)


@inlined
def _ends(elements: Any, groups: Any, lowest: Any, highest: Any) -> None:
    for group in range(groups):
        start = advanced(elements, group * GROUP)
        first, second = _ordered(load(start)), _ordered(load(advanced(start, LANES)))
        every = splat(_ALL_BITS)
        highest[group] = _bits_at(largest(larger(first, second)))
        lowest[group] = _bits_at(U32(_ALL_BITS ^ largest(larger(differing(first, every), differing(second, every)))))


@inlined
def _steps(
    lowest: Any, highest: Any, groups: Any, minima: Any, factors: Any, step_bits: Any, minimum_bits: Any
) -> None:
    for group in range(groups):
        low = lowest[group]
        rounding = U32(0xFFFF) if low >= SIGN else U32(0)
        cut = U32(U32(low + rounding) & U32(0xFFFF0000))
        exact = bits_of(F32(F32(float_of(highest[group]) - float_of(cut)) / _LARGEST_CODE))
        odd = U32(U32(exact >> U32(16)) & U32(1))
        rounded = float_of(U32(U32(exact + U32(0x7FFF) + odd) & U32(0xFFFF0000)))
        step = rounded if rounded > _SMALLEST_STEP else _SMALLEST_STEP
        minima[group] = float_of(cut)
        factors[group] = F32(F32(1) / step)
        step_bits[group] = U16(bits_of(step) >> U32(16))
        minimum_bits[group] = U16(cut >> U32(16))


@inlined
def _quantise(values: Any, groups: Any, minima: Any, factors: Any, codes: Any) -> None:
    """No code needs saturation: a step is off by 2^-9 of itself at most, and 15.03 rounds to 15."""
    for group in range(groups):
        minimum, factor = splat(minima[group]), splat(factors[group])
        for start in (group * GROUP, group * GROUP + LANES):
            scaled = multiply(subtract(load(advanced(values, start)), minimum), factor)
            store(advanced(codes, start), converted(bits(add(scaled, splat(_ROUND_TO_INTEGER))), U8(0)))


@inlined
def _pack(codes: Any, head_dim: Any, packed: Any) -> None:
    width = (head_dim + 1) // 2
    for i in range(head_dim - width):
        packed[i] = U8(codes[i] | U8(codes[i + width] << U8(4)))
    if head_dim % 2:
        packed[width - 1] = codes[width - 1]


@inlined
def _unpack(packed: Any, head_dim: Any, codes: Any) -> None:
    width = (head_dim + 1) // 2
    for i in range(width):
        codes[i] = U8(packed[i] & U8(0xF))
    for i in range(head_dim - width):
        codes[i + width] = U8(packed[i] >> U8(4))


@inlined
def _restore(codes: Any, groups: Any, step_bits: Any, minimum_bits: Any, values: Any) -> None:
    for group in range(groups):
        step = splat(float_of(U32(U32(step_bits[group]) << U32(16))))
        minimum = splat(float_of(U32(U32(minimum_bits[group]) << U32(16))))
        for start in (group * GROUP, group * GROUP + LANES):
            code = converted(load(advanced(codes, start)), F32(0))
            store(advanced(values, start), add(minimum, multiply(code, step)))


@inlined
def _saturated_fp16(value: Any) -> Any:
    magnitude = float_of(U32(bits_of(value) & ~SIGN))
    bounded = bits_of(magnitude if magnitude < _LARGEST_FP16 else _LARGEST_FP16)
    return narrowed_fp16(float_of(U32(bounded | U32(bits_of(value) & SIGN))))


@inlined
def _encode(
    magnitude: Any, as_fp32: Any, widened: Any, word: Any, addresses: Any, counts: Any, head_dim: Any, places: Any
) -> Any:
    width, groups = (head_dim + 1) // 2, (head_dim + GROUP - 1) // GROUP
    padded = groups * GROUP
    packed, steps, minimum_bits = pointer(places[0], U8(0)), pointer(places[1], U16(0)), pointer(places[2], U16(0))
    values, elements, codes = pointer(places[3], F32(0)), pointer(places[3], U32(0)), pointer(places[4], U8(0))
    lowest, highest = pointer(places[5], U32(0)), pointer(places[6], U32(0))
    minima, factors = pointer(places[7], F32(0)), pointer(places[8], F32(0))
    row = 0
    for segment in range(addresses.size):
        for first in range(0, counts[segment], _TILE):
            start = advanced(pointer(addresses[segment], word), first * head_dim)
            rows = min(_TILE, counts[segment] - first)
            for r in range(rows):
                words = advanced(start, r * head_dim)
                top = magnitude(word)
                for i in range(head_dim):
                    top = max(top, magnitude(words[i]))
                if as_fp32(top) >= _VALUE_LIMIT:
                    return row + r
                _fill(widened, words, head_dim, padded, advanced(values, r * padded))
            _ends(elements, rows * groups, lowest, highest)
            of_rows, of_minima = advanced(steps, row * groups), advanced(minimum_bits, row * groups)
            _steps(lowest, highest, rows * groups, minima, factors, of_rows, of_minima)
            _quantise(values, rows * groups, minima, factors, codes)
            for r in range(rows):
                _pack(advanced(codes, r * padded), head_dim, advanced(packed, (row + r) * width))
            row += rows
    return -1


@inlined
def _decode(narrowed: Any, word: Any, addresses: Any, counts: Any, head_dim: Any, places: Any) -> None:
    width, groups = (head_dim + 1) // 2, (head_dim + GROUP - 1) // GROUP
    padded = groups * GROUP
    packed, steps, minima = pointer(places[0], U8(0)), pointer(places[1], U16(0)), pointer(places[2], U16(0))
    values, codes = pointer(places[3], F32(0)), pointer(places[4], U8(0))
    row = 0
    for segment in range(addresses.size):
        for first in range(0, counts[segment], _TILE):
            start = advanced(pointer(addresses[segment], word), first * head_dim)
            rows = min(_TILE, counts[segment] - first)
            for r in range(rows):
                _unpack(advanced(packed, (row + r) * width), head_dim, advanced(codes, r * padded))
            _restore(codes, rows * groups, advanced(steps, row * groups), advanced(minima, row * groups), values)
            for r in range(rows):
                words, of_row = advanced(start, r * head_dim), advanced(values, r * padded)
                for i in range(head_dim):
                    words[i] = narrowed(of_row[i])
            row += rows


_ARGUMENTS = (types.int64, types.uint64[::1], types.int64[::1], types.int64, types.uint64[::1])


@kernel(types.int64(*_ARGUMENTS))
def encode(kind: Any, addresses: Any, counts: Any, head_dim: Any, places: Any) -> Any:
    """Make codes, steps and minima of `counts[i]` rows at `addresses[i]`.

    places: addresses of codes, steps, minima, and of the pieces of memory to work in, see `working_bytes`.

    Returns -1, or the number of the first row that cannot be carried.
    """
    if kind == BF16:
        return _encode(magnitude_16, as_fp32_bf16, widened_bf16, U16(0), addresses, counts, head_dim, places)
    if kind == FP16:
        return _encode(magnitude_16, as_fp32_fp16, widened_fp16, U16(0), addresses, counts, head_dim, places)
    return _encode(magnitude_32, as_fp32_fp32, widened_fp32, U32(0), addresses, counts, head_dim, places)


@kernel(types.void(*_ARGUMENTS))
def decode(kind: Any, addresses: Any, counts: Any, head_dim: Any, places: Any) -> None:
    """Fill `counts[i]` rows at `addresses[i]`; arguments as in `encode`. Steps and minima are sound already."""
    if kind == BF16:
        _decode(narrowed_bf16, U16(0), addresses, counts, head_dim, places)
    elif kind == FP16:
        _decode(_saturated_fp16, U16(0), addresses, counts, head_dim, places)
    else:
        _decode(narrowed_fp32, U32(0), addresses, counts, head_dim, places)


def working_bytes(head_dim: int) -> tuple[int, ...]:
    """Sizes of what kernels work in: values and codes of a few rows, then four numbers for each group. Lines of a
    cache."""
    groups = -(-head_dim // GROUP) * _TILE
    return groups * GROUP * 4, groups * GROUP, groups * 4, groups * 4, groups * 4, groups * 4
