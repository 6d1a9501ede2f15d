"""Kernels of `fp4`; the format is stated in `kvferry_runtime.codec.fp4.format`.

Scales and exponents come first, then codes: the two halves of a byte are elements far apart, of different groups.
"""

# The arguments of kernels have Triton's own types, and their constants are upper case as in Triton's own.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

from __future__ import annotations

import triton.language as tl

from kvferry_runtime.codec.device.base import Problem
from kvferry_runtime.codec.device.e4m3 import e4m3_codes, e4m3_values
from kvferry_runtime.codec.device.floats import INFINITY_BITS, fp32_bits, words_of
from kvferry_runtime.codec.device.launch import kernel
from kvferry_runtime.codec.device.paging import row_pointers
from kvferry_runtime.codec.fp4.format import (
    EXPONENT_BIAS,
    GROUP,
    LARGEST_SCALE,
    LARGEST_SCALE_AT_TOP,
    SMALLEST_EXPONENT,
    SMALLEST_SCALE,
)

_NOT_FINITE = tl.constexpr(int(Problem.NOT_FINITE))
_VOID_CODE = tl.constexpr(int(Problem.VOID_CODE))
_BAD_SCALE = tl.constexpr(int(Problem.BAD_SCALE))
_GROUP = tl.constexpr(GROUP)
_SMALLEST_EXPONENT = tl.constexpr(SMALLEST_EXPONENT)
_SMALLEST_SCALE = tl.constexpr(SMALLEST_SCALE)
_LARGEST_SCALE = tl.constexpr(LARGEST_SCALE)
_LARGEST_SCALE_AT_TOP = tl.constexpr(LARGEST_SCALE_AT_TOP)
_INVERSE_BIAS = tl.constexpr(127 + EXPONENT_BIAS)
_UNIT_BIAS = tl.constexpr(EXPONENT_BIAS - 127)
_UNIT_EXPONENT = tl.constexpr(EXPONENT_BIAS)
_SIXTH_BITS = tl.constexpr(0x3E2AAAAB)  # fp32(1 / 6)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)

# Adding 2^(e + 22) to a magnitude in [2^e, 2^(e + 1)) rounds it to a multiple of 2^(e - 1), ties to even, and leaves
# the multiple (2 to 4) in the low bits; below 1, with e = 0, it is 0 to 2. The code is that plus 2 * e. The addend's
# own low bits hold what makes up the difference between 2 * e and its exponent field shifted right by 22, modulo 8;
# the number is even, so ties stay as they are.
_ADDEND = tl.constexpr((22 << 23) + (-((127 + 22) << 1)) % 8)
_ONE_BITS = tl.constexpr(127 << 23)
_SIX_BITS = tl.constexpr(0x40C00000)


@kernel
def e2m1_codes(scaled):
    """fp32 values as four bits each; magnitudes above 6 saturate."""
    signed = scaled.to(tl.uint32, bitcast=True)
    magnitude = tl.minimum(signed & _MAGNITUDE, _SIX_BITS)
    addend = tl.maximum(magnitude & INFINITY_BITS, _ONE_BITS) + _ADDEND
    rounded = magnitude.to(tl.float32, bitcast=True) + addend.to(tl.float32, bitcast=True)
    code = (rounded.to(tl.uint32, bitcast=True) + (addend >> 22)) & 7
    return code | ((signed >> 28) & 8)


@kernel
def e2m1_values(codes):
    """Four bits each (uint32) as fp32; -0 becomes 0."""
    magnitude = codes & 7
    normal = (((magnitude >> 1) + 126) << 23) | ((magnitude & 1) << 22)
    bits = tl.where(magnitude >= 2, normal, magnitude * (126 << 23))
    sign = tl.where(magnitude == 0, 0, (codes & 8) << 28)
    return (bits | sign).to(tl.float32, bitcast=True)


@kernel
def power_of_two(exponent):
    """fp32 of a biased exponent (uint32)."""
    return (exponent << 23).to(tl.float32, bitcast=True)


@kernel
def make_scales(
    planes, blocks, payload, status,
    total, tokens, first_token, block_stride, token_stride, head_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ALIGNED: tl.constexpr,
    ELEMENT: tl.constexpr, BYTES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    KIND: tl.constexpr, GROUPS: tl.constexpr, TOP_EXPONENT: tl.constexpr,
):  # fmt: skip
    """Scales [rows, groups] and exponents [rows]. WIDTH: padded number of groups."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = tl.arange(0, WIDTH)
    column = group[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
    in_chunk = row < total
    pointers = row_pointers(
        planes, blocks, row, in_chunk, tokens, first_token, block_stride, token_stride, head_stride,
        HEADS, BLOCK_TOKENS, ALIGNED, ELEMENT, BYTES,
    )  # fmt: skip
    held = in_chunk[:, None, None] & (column < HEAD_DIM)[None, :, :]
    bits = fp32_bits(tl.load(pointers[:, None, None] + column[None, :, :], mask=held, other=0), KIND)
    largest = tl.max(bits & _MAGNITUDE, axis=2)
    top = tl.max(largest, axis=1)
    finite = top < INFINITY_BITS
    tl.atomic_or(status + tl.zeros_like(row), _NOT_FINITE, mask=in_chunk & ~finite)
    exponent = tl.maximum(tl.where(finite, top, 0) >> 23, _SMALLEST_EXPONENT)
    inverse = power_of_two(tl.zeros_like(exponent) + _INVERSE_BIAS - exponent)
    magnitude = tl.where(finite[:, None], largest, 0).to(tl.float32, bitcast=True)
    sixth = (tl.zeros_like(top) + _SIXTH_BITS).to(tl.float32, bitcast=True)
    scale = e4m3_codes(magnitude * inverse[:, None] * sixth[:, None])
    limit = tl.where(exponent == TOP_EXPONENT, _LARGEST_SCALE_AT_TOP, _LARGEST_SCALE)
    scale = tl.minimum(tl.maximum(scale.to(tl.uint32), _SMALLEST_SCALE), limit[:, None].to(tl.uint32))
    scales = payload + total * ((HEAD_DIM + 1) // 2)
    held_groups = in_chunk[:, None] & (group < GROUPS)[None, :]
    tl.store(scales + row[:, None] * GROUPS + group[None, :], scale.to(tl.uint8), mask=held_groups)
    tl.store(scales + total * GROUPS + row, exponent.to(tl.uint8), mask=in_chunk)


@kernel
def group_scale(scales, exponents, row, column, held, GROUPS: tl.constexpr):
    """fp32 scale [rows, columns] of the group that each column is in; 1 where not held."""
    scale = tl.load(scales + row[:, None] * GROUPS + (column // _GROUP)[None, :], mask=held, other=0x38)
    exponent = tl.load(exponents + row[:, None] + tl.zeros_like(column)[None, :], mask=held, other=_UNIT_EXPONENT)
    return e4m3_values(scale) * power_of_two(exponent.to(tl.uint32) - _UNIT_BIAS)


@kernel
def codes_of_columns(
    pointers, scales, exponents, row, column, in_chunk, KIND: tl.constexpr, HEAD_DIM: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    held = in_chunk[:, None] & (column < HEAD_DIM)[None, :]
    bits = fp32_bits(tl.load(pointers[:, None] + column[None, :], mask=held, other=0), KIND)
    scale = group_scale(scales, exponents, row, column, held, GROUPS)
    factor = tl.div_rn(tl.zeros_like(scale) + 1.0, scale)
    finite = (bits & _MAGNITUDE) < INFINITY_BITS
    return e2m1_codes(tl.where(finite, bits.to(tl.float32, bitcast=True), 0.0) * factor)


@kernel
def make_codes(
    planes, blocks, payload, status,
    total, tokens, first_token, block_stride, token_stride, head_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ALIGNED: tl.constexpr,
    ELEMENT: tl.constexpr, BYTES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    KIND: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Codes [rows, ceil(head_dim / 2)], after `make_scales`. WIDTH: padded bytes of a row's codes."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = tl.arange(0, WIDTH)
    in_chunk = row < total
    row_bytes = (HEAD_DIM + 1) // 2
    pointers = row_pointers(
        planes, blocks, row, in_chunk, tokens, first_token, block_stride, token_stride, head_stride,
        HEADS, BLOCK_TOKENS, ALIGNED, ELEMENT, BYTES,
    )  # fmt: skip
    scales = payload + total * row_bytes
    exponents = scales + total * GROUPS
    low = codes_of_columns(pointers, scales, exponents, row, place, in_chunk, KIND, HEAD_DIM, GROUPS)
    high = codes_of_columns(pointers, scales, exponents, row, place + row_bytes, in_chunk, KIND, HEAD_DIM, GROUPS)
    held = in_chunk[:, None] & (place < row_bytes)[None, :]
    tl.store(payload + row[:, None] * row_bytes + place[None, :], (low | (high << 4)).to(tl.uint8), mask=held)


@kernel
def check_scales(payload, status, total, HEAD_DIM: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr,
                 WIDTH: tl.constexpr, TOP_EXPONENT: tl.constexpr):  # fmt: skip
    """Note scales, exponents and codes that no encoder writes. WIDTH: padded number of groups."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = tl.arange(0, WIDTH)
    in_chunk = row < total
    row_bytes = (HEAD_DIM + 1) // 2
    scales = payload + total * row_bytes
    exponent = tl.load(scales + total * GROUPS + row, mask=in_chunk, other=127)
    held = in_chunk[:, None] & (group < GROUPS)[None, :]
    scale = tl.load(scales + row[:, None] * GROUPS + group[None, :], mask=held, other=0x38)
    limit = tl.where(exponent == TOP_EXPONENT, _LARGEST_SCALE_AT_TOP, _LARGEST_SCALE)[:, None]
    bad_groups = tl.max(((scale < _SMALLEST_SCALE) | (scale > limit)).to(tl.int32), axis=1)
    bad = (bad_groups != 0) | (exponent < _SMALLEST_EXPONENT) | (exponent > TOP_EXPONENT)
    tl.atomic_or(status + tl.zeros_like(row), _BAD_SCALE, mask=in_chunk & bad)
    if HEAD_DIM % 2 == 1:
        last = tl.load(payload + row * row_bytes + (row_bytes - 1), mask=in_chunk, other=0)
        tl.atomic_or(status + tl.zeros_like(row), _VOID_CODE, mask=in_chunk & ((last >> 4) != 0))


@kernel
def store_columns(pointers, codes, scales, exponents, row, column, held, KIND: tl.constexpr, GROUPS: tl.constexpr):
    values = e2m1_values(codes) * group_scale(scales, exponents, row, column, held, GROUPS)
    tl.store(pointers[:, None] + column[None, :], words_of(values, KIND), mask=held)


@kernel
def restore_rows(
    planes, blocks, payload, status,
    total, tokens, first_token, block_stride, token_stride, head_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ALIGNED: tl.constexpr,
    ELEMENT: tl.constexpr, BYTES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    KIND: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """The other way round; `check_scales` says whether the rows mean anything."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = tl.arange(0, WIDTH)
    in_chunk = row < total
    row_bytes = (HEAD_DIM + 1) // 2
    pointers = row_pointers(
        planes, blocks, row, in_chunk, tokens, first_token, block_stride, token_stride, head_stride,
        HEADS, BLOCK_TOKENS, ALIGNED, ELEMENT, BYTES,
    )  # fmt: skip
    scales = payload + total * row_bytes
    exponents = scales + total * GROUPS
    held = in_chunk[:, None] & (place < row_bytes)[None, :]
    pairs = tl.load(payload + row[:, None] * row_bytes + place[None, :], mask=held, other=0).to(tl.uint32)
    store_columns(pointers, pairs & 15, scales, exponents, row, place, held, KIND, GROUPS)
    second = place + row_bytes
    held_too = held & (second < HEAD_DIM)[None, :]
    store_columns(pointers, pairs >> 4, scales, exponents, row, second, held_too, KIND, GROUPS)
