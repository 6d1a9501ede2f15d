"""Kernels for the values of `k8v4`; the format is stated in `kvferry_runtime.codec.k8v4.format`.

Steps and minima come first, then codes: the two halves of a byte are elements far apart, of different groups.
"""

# The arguments of kernels have Triton's own types, and their constants are upper case as in Triton's own.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

from __future__ import annotations

import triton.language as tl

from kvferry_runtime.codec.device.base import Problem
from kvferry_runtime.codec.device.floats import fp32_bits, words_of
from kvferry_runtime.codec.device.launch import FP16, kernel
from kvferry_runtime.codec.device.paging import row_pointers
from kvferry_runtime.codec.device.unaligned import load_bytes, store_bytes
from kvferry_runtime.codec.k8v4.format import GROUP, LARGEST_CODE, SMALLEST_STEP, VALUE_LIMIT

_NOT_FINITE = tl.constexpr(int(Problem.NOT_FINITE))
_BAD_SCALE = tl.constexpr(int(Problem.BAD_SCALE))
_GROUP = tl.constexpr(GROUP)
_LARGEST_CODE = tl.constexpr(LARGEST_CODE)
_SMALLEST_STEP = tl.constexpr(SMALLEST_STEP)
_LARGEST_STEP = tl.constexpr((2.0**127 / 15) * (1 + 2.0**-8))
"""Above 2^127 / 15 as bf16, below the next one."""
_VALUE_LIMIT = tl.constexpr(VALUE_LIMIT)
_SMALLEST_NORMAL_BITS = tl.constexpr(1 << 23)
_VALUE_LIMIT_BITS = tl.constexpr((127 + 126) << 23)
_LARGEST_FP16 = tl.constexpr(65504.0)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_HIGH_HALF = tl.constexpr(0xFFFF0000)

# adding 1.5 * 2^23 leaves the integer nearest to a small float in the low bits of the sum, ties to even
_ROUND_TO_INTEGER = tl.constexpr(1.5 * 2**23)


@kernel
def load_values(pointers, held, KIND: tl.constexpr):
    """fp32 elements, subnormals as 0, and whether each can be carried; those that cannot are 0 too."""
    bits = fp32_bits(tl.load(pointers, mask=held, other=0), KIND)
    magnitude = bits & _MAGNITUDE
    carried = magnitude < _VALUE_LIMIT_BITS
    kept = carried & (magnitude >= _SMALLEST_NORMAL_BITS)
    return tl.where(kept, bits, 0).to(tl.float32, bitcast=True), carried


@kernel
def rounded_down(values):
    """To the largest bf16 that is not above, as fp32."""
    cut = values.to(tl.uint32, bitcast=True) & _HIGH_HALF
    above = cut.to(tl.float32, bitcast=True) > values
    return tl.where(above, cut + 0x10000, cut).to(tl.float32, bitcast=True)


@kernel
def nearest_bf16(values):
    """Ties to even, as fp32. For finite values."""
    bits = values.to(tl.uint32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & _HIGH_HALF).to(tl.float32, bitcast=True)


@kernel
def make_steps(
    planes, blocks, payload, status,
    total, tokens, first_token, block_stride, token_stride, head_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ALIGNED: tl.constexpr,
    ELEMENT: tl.constexpr, BYTES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    KIND: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Steps, then minima, bf16 [rows, groups] each. payload: behind the keys. WIDTH: padded number of groups."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = tl.arange(0, WIDTH)
    column = group[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
    in_chunk = row < total
    pointers = row_pointers(
        planes, blocks, row, in_chunk, tokens, first_token, block_stride, token_stride, head_stride,
        HEADS, BLOCK_TOKENS, ALIGNED, ELEMENT, BYTES,
    )  # fmt: skip
    held = in_chunk[:, None, None] & (column < HEAD_DIM)[None, :, :]
    values, carried = load_values(pointers[:, None, None] + column[None, :, :], held, KIND)
    refused = tl.max(tl.max((held & ~carried).to(tl.int32), axis=2), axis=1) != 0
    tl.atomic_or(status + tl.zeros_like(row), _NOT_FINITE, mask=refused)
    minimum = tl.min(tl.where(held, values, _VALUE_LIMIT), axis=2)
    largest = tl.max(tl.where(held, values, -_VALUE_LIMIT), axis=2)
    minimum = rounded_down(minimum)
    step = tl.maximum(nearest_bf16(tl.div_rn(largest - minimum, _LARGEST_CODE)), _SMALLEST_STEP)
    held_groups = in_chunk[:, None] & (group < GROUPS)[None, :]
    place = payload + total * ((HEAD_DIM + 1) // 2) + (row[:, None] * GROUPS + group[None, :]) * 2
    store_bytes(place, step.to(tl.uint32, bitcast=True) >> 16, held_groups, 2)
    store_bytes(place + total * GROUPS * 2, minimum.to(tl.uint32, bitcast=True) >> 16, held_groups, 2)


@kernel
def step_and_minimum(payload, total, row, column, held, HEAD_DIM: tl.constexpr, GROUPS: tl.constexpr):
    """fp32 [rows, columns] of the group that each column is in."""
    place = payload + total * ((HEAD_DIM + 1) // 2) + (row[:, None] * GROUPS + (column // _GROUP)[None, :]) * 2
    step = (load_bytes(place, held, 2) << 16).to(tl.float32, bitcast=True)
    minimum = (load_bytes(place + total * GROUPS * 2, held, 2) << 16).to(tl.float32, bitcast=True)
    return step, minimum


@kernel
def codes_of_columns(
    pointers, payload, total, row, column, in_chunk, KIND: tl.constexpr, HEAD_DIM: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    held = in_chunk[:, None] & (column < HEAD_DIM)[None, :]
    values, _ = load_values(pointers[:, None] + column[None, :], held, KIND)
    step, minimum = step_and_minimum(payload, total, row, column, held, HEAD_DIM, GROUPS)
    factor = tl.div_rn(tl.zeros_like(step) + 1.0, tl.where(held, step, 1.0))
    code = ((values - minimum) * factor + _ROUND_TO_INTEGER).to(tl.uint32, bitcast=True) & 15
    return tl.where(held, code, 0)


@kernel
def make_codes(
    planes, blocks, payload, status,
    total, tokens, first_token, block_stride, token_stride, head_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ALIGNED: tl.constexpr,
    ELEMENT: tl.constexpr, BYTES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    KIND: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Codes [rows, ceil(head_dim / 2)], after `make_steps`. WIDTH: padded bytes of a row's codes."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = tl.arange(0, WIDTH)
    in_chunk = row < total
    row_bytes = (HEAD_DIM + 1) // 2
    pointers = row_pointers(
        planes, blocks, row, in_chunk, tokens, first_token, block_stride, token_stride, head_stride,
        HEADS, BLOCK_TOKENS, ALIGNED, ELEMENT, BYTES,
    )  # fmt: skip
    low = codes_of_columns(pointers, payload, total, row, place, in_chunk, KIND, HEAD_DIM, GROUPS)
    high = codes_of_columns(pointers, payload, total, row, place + row_bytes, in_chunk, KIND, HEAD_DIM, GROUPS)
    held = in_chunk[:, None] & (place < row_bytes)[None, :]
    tl.store(payload + row[:, None] * row_bytes + place[None, :], (low | (high << 4)).to(tl.uint8), mask=held)


@kernel
def restore_columns(
    pointers, codes, payload, status, total, row, column, held,
    KIND: tl.constexpr, HEAD_DIM: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    step, minimum = step_and_minimum(payload, total, row, column, held, HEAD_DIM, GROUPS)
    magnitude = minimum.to(tl.uint32, bitcast=True) & _MAGNITUDE
    good_minimum = (magnitude == 0) | ((magnitude >= _SMALLEST_NORMAL_BITS) & (magnitude <= _VALUE_LIMIT_BITS))
    good = (step >= _SMALLEST_STEP) & (step <= _LARGEST_STEP) & good_minimum
    bad = tl.max((held & ~good).to(tl.int32), axis=1) != 0
    tl.atomic_or(status + tl.zeros_like(row), _BAD_SCALE, mask=bad)
    usable = held & good
    values = tl.where(usable, minimum, 0.0) + codes.to(tl.float32) * tl.where(usable, step, 1.0)
    if KIND == FP16:
        values = tl.minimum(tl.maximum(values, -_LARGEST_FP16), _LARGEST_FP16)
    tl.store(pointers[:, None] + column[None, :], words_of(values, KIND), mask=held)


@kernel
def restore_rows(
    planes, blocks, payload, status,
    total, tokens, first_token, block_stride, token_stride, head_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ALIGNED: tl.constexpr,
    ELEMENT: tl.constexpr, BYTES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    KIND: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """The other way round; a step or a minimum that no encoder writes is noted in `status`."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = tl.arange(0, WIDTH)
    in_chunk = row < total
    row_bytes = (HEAD_DIM + 1) // 2
    pointers = row_pointers(
        planes, blocks, row, in_chunk, tokens, first_token, block_stride, token_stride, head_stride,
        HEADS, BLOCK_TOKENS, ALIGNED, ELEMENT, BYTES,
    )  # fmt: skip
    held = in_chunk[:, None] & (place < row_bytes)[None, :]
    pairs = tl.load(payload + row[:, None] * row_bytes + place[None, :], mask=held, other=0).to(tl.uint32)
    restore_columns(pointers, pairs & 15, payload, status, total, row, place, held, KIND, HEAD_DIM, GROUPS)
    second = place + row_bytes
    held_too = held & (second < HEAD_DIM)[None, :]
    restore_columns(pointers, pairs >> 4, payload, status, total, row, second, held_too, KIND, HEAD_DIM, GROUPS)
