"""Gather and scatter of rows as they are; the format is stated in `kvferry_runtime.codec.none.format`."""

# The arguments of kernels have Triton's own types, and their constants are upper case as in Triton's own.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

from __future__ import annotations

import triton.language as tl

from kvferry_runtime.codec.device.launch import kernel
from kvferry_runtime.codec.device.paging import row_pointers


@kernel
def move_rows(
    planes, blocks, payload, status,
    total, tokens, first_token, block_stride, token_stride, head_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ALIGNED: tl.constexpr,
    ELEMENT: tl.constexpr, BYTES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, GATHER: tl.constexpr,
):  # fmt: skip
    """GATHER: from the blocks into the payload, else the other way."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    in_blocks = row_pointers(
        planes, blocks, row, row < total, tokens, first_token, block_stride, token_stride, head_stride,
        HEADS, BLOCK_TOKENS, ALIGNED, ELEMENT, BYTES,
    )[:, None] + column[None, :]  # fmt: skip
    in_payload = payload.to(tl.pointer_type(ELEMENT)) + row[:, None] * HEAD_DIM + column[None, :]
    held = (row < total)[:, None] & (column < HEAD_DIM)[None, :]
    if GATHER:
        tl.store(in_payload, tl.load(in_blocks, mask=held), mask=held)
    else:
        tl.store(in_blocks, tl.load(in_payload, mask=held), mask=held)
