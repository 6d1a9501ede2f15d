"""Kernels of the methods with one byte an element and fp32 scales; the formats are stated in
`kvferry_runtime.codec.scaled.format`, `int8` and `fp8`, the arithmetic is that of the host's kernels."""

# The arguments of kernels have Triton's own types, and their constants are upper case as in Triton's own.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

from __future__ import annotations

import triton.language as tl

from kvferry_runtime.codec.base import ScaleScope
from kvferry_runtime.codec.device.base import Problem
from kvferry_runtime.codec.device.e4m3 import e4m3_codes, e4m3_values
from kvferry_runtime.codec.device.floats import INFINITY_BITS, fp32_bits, largest_magnitude, words_of
from kvferry_runtime.codec.device.launch import kernel
from kvferry_runtime.codec.device.paging import row_pointers
from kvferry_runtime.codec.device.unaligned import load_bytes, store_bytes

_NOT_FINITE = tl.constexpr(int(Problem.NOT_FINITE))
_VOID_CODE = tl.constexpr(int(Problem.VOID_CODE))
_BAD_SCALE = tl.constexpr(int(Problem.BAD_SCALE))
_TOKEN_AND_HEAD = tl.constexpr(int(ScaleScope.TOKEN_AND_HEAD))
_HEAD = tl.constexpr(int(ScaleScope.HEAD))

# adding 1.5 * 2^23 leaves the integer nearest to a small float in the low bits of the sum, ties to even
_ROUND_TO_INTEGER = tl.constexpr(1.5 * 2**23)


@kernel
def int8_codes(scaled):
    """fp32 values of at most 127, give or take their rounding, as two's complement bytes."""
    return ((scaled + _ROUND_TO_INTEGER).to(tl.uint32, bitcast=True) & 0xFF).to(tl.uint8)


@kernel
def scale_and_factor(largest, LARGEST_CODE: tl.constexpr, SMALLEST_SCALE: tl.constexpr):
    """Scale, and what turns elements into codes, from fp32 bits of the largest magnitude."""
    magnitude = tl.where(largest == 0, LARGEST_CODE, largest.to(tl.float32, bitcast=True))
    scale = tl.div_rn(magnitude, LARGEST_CODE)
    at_bound = scale < SMALLEST_SCALE
    factor = tl.div_rn(LARGEST_CODE, tl.where(at_bound, LARGEST_CODE, magnitude))
    return tl.where(at_bound, SMALLEST_SCALE, scale), tl.where(at_bound, 1.0 / SMALLEST_SCALE, factor)


@kernel
def scale_of_row(row, tokens, HEADS: tl.constexpr, SCOPE: tl.constexpr):
    """Number of the scale of each row, and whether the row is the first one that has it."""
    if SCOPE == _TOKEN_AND_HEAD:
        number = row
        first = row == row
    elif SCOPE == _HEAD:
        number = row // HEADS // tokens * HEADS + row % HEADS
        first = row // HEADS % tokens == 0
    else:
        number = row // HEADS // tokens
        first = row % (HEADS * tokens) == 0
    return number, first


@kernel
def find_largest(
    planes, blocks, payload, status,
    total, tokens, first_token, block_stride, token_stride, head_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ALIGNED: tl.constexpr,
    ELEMENT: tl.constexpr, BYTES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    largest, KIND: tl.constexpr, SCOPE: tl.constexpr,
):  # fmt: skip
    """Raise `largest`, int32 [scales], to the fp32 bits of the largest magnitude that has this scale."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    in_chunk = row < total
    pointers = row_pointers(
        planes, blocks, row, in_chunk, tokens, first_token, block_stride, token_stride, head_stride,
        HEADS, BLOCK_TOKENS, ALIGNED, ELEMENT, BYTES,
    )  # fmt: skip
    held = in_chunk[:, None] & (column < HEAD_DIM)[None, :]
    bits = fp32_bits(tl.load(pointers[:, None] + column[None, :], mask=held, other=0), KIND)
    number, _ = scale_of_row(row, tokens, HEADS, SCOPE)
    tl.atomic_max(largest + number, largest_magnitude(bits).to(tl.int32), mask=in_chunk)


@kernel
def encode_rows(
    planes, blocks, payload, status,
    total, tokens, first_token, block_stride, token_stride, head_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ALIGNED: tl.constexpr,
    ELEMENT: tl.constexpr, BYTES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    largest, KIND: tl.constexpr, SCOPE: tl.constexpr,
    FP8: tl.constexpr, LARGEST_CODE: tl.constexpr, SMALLEST_SCALE: tl.constexpr,
):  # fmt: skip
    """Codes [rows, head_dim], then scales. largest: as `find_largest` leaves it, not looked at with a scale a row."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    in_chunk = row < total
    pointers = row_pointers(
        planes, blocks, row, in_chunk, tokens, first_token, block_stride, token_stride, head_stride,
        HEADS, BLOCK_TOKENS, ALIGNED, ELEMENT, BYTES,
    )  # fmt: skip
    held = in_chunk[:, None] & (column < HEAD_DIM)[None, :]
    bits = fp32_bits(tl.load(pointers[:, None] + column[None, :], mask=held, other=0), KIND)
    number, first = scale_of_row(row, tokens, HEADS, SCOPE)
    if SCOPE == _TOKEN_AND_HEAD:
        magnitude = largest_magnitude(bits)
    else:
        magnitude = tl.load(largest + number, mask=in_chunk, other=0).to(tl.uint32)
    finite = magnitude < INFINITY_BITS
    tl.atomic_or(status + tl.zeros_like(row), _NOT_FINITE, mask=in_chunk & ~finite)
    scale, factor = scale_and_factor(tl.where(finite, magnitude, 0), LARGEST_CODE, SMALLEST_SCALE)
    scaled = tl.where(finite[:, None], bits.to(tl.float32, bitcast=True), 0.0) * factor[:, None]
    codes = e4m3_codes(scaled) if FP8 else int8_codes(scaled)
    tl.store(payload + row[:, None] * HEAD_DIM + column[None, :], codes, mask=held)
    place = payload + total * HEAD_DIM + number * 4
    store_bytes(place, scale.to(tl.uint32, bitcast=True), in_chunk & first, 4)


@kernel
def decode_rows(
    planes, blocks, payload, status,
    total, tokens, first_token, block_stride, token_stride, head_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ALIGNED: tl.constexpr,
    ELEMENT: tl.constexpr, BYTES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    KIND: tl.constexpr, SCOPE: tl.constexpr,
    FP8: tl.constexpr, LARGEST_SCALE: tl.constexpr, SMALLEST_SCALE: tl.constexpr,
):  # fmt: skip
    """The other way round; a scale outside of its bounds or a code without a value is noted in `status`."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    in_chunk = row < total
    held = in_chunk[:, None] & (column < HEAD_DIM)[None, :]
    number, _ = scale_of_row(row, tokens, HEADS, SCOPE)
    scale = load_bytes(payload + total * HEAD_DIM + number * 4, in_chunk, 4).to(tl.float32, bitcast=True)
    good = (scale >= SMALLEST_SCALE) & (scale <= LARGEST_SCALE)
    tl.atomic_or(status + tl.zeros_like(row), _BAD_SCALE, mask=in_chunk & ~good)
    codes = tl.load(payload + row[:, None] * HEAD_DIM + column[None, :], mask=held, other=0)
    if FP8:
        void = (codes & 0x7F) == 0x7F
        values = e4m3_values(tl.where(void, 0, codes))
    else:
        void = codes == 0x80
        values = codes.to(tl.int8, bitcast=True).to(tl.float32)
    some_void = tl.max(void.to(tl.int32), axis=1) != 0
    tl.atomic_or(status + tl.zeros_like(row), _VOID_CODE, mask=in_chunk & some_void)
    pointers = row_pointers(
        planes, blocks, row, in_chunk, tokens, first_token, block_stride, token_stride, head_stride,
        HEADS, BLOCK_TOKENS, ALIGNED, ELEMENT, BYTES,
    )  # fmt: skip
    words = words_of(values * tl.where(good, scale, 1.0)[:, None], KIND)
    tl.store(pointers[:, None] + column[None, :], words, mask=held)
