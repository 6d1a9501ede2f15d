"""Kernels of sparse methods; the format is stated in `kvferry_runtime.codec.sparse.payload`."""

# The arguments of kernels have Triton's own types, and their constants are upper case as in Triton's own.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

from __future__ import annotations

import triton.language as tl

from kvferry_runtime.codec.device.launch import kernel
from kvferry_runtime.codec.device.paging import row_pointers

_BEFORE_BYTES = tl.constexpr(4)


@kernel
def write_header(payload, before, mask, total, tokens, LAYERS: tl.constexpr, SIZE: tl.constexpr):
    """All `total` bytes before the rows. before: int32 [layers]. mask: int32 [layers, tokens]."""
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    in_counts = place < LAYERS * _BEFORE_BYTES
    count = tl.load(before + place // _BEFORE_BYTES, mask=in_counts, other=0)
    of_count = (count >> (8 * (place % _BEFORE_BYTES))) & 0xFF
    width = (tokens + 7) // 8
    in_bitmap = place - LAYERS * _BEFORE_BYTES
    layer = in_bitmap // width
    first = in_bitmap % width * 8
    byte = tl.zeros_like(place)
    for bit in tl.static_range(8):
        held = (in_bitmap >= 0) & (layer < LAYERS) & (first + bit < tokens)
        byte |= tl.load(mask + layer * tokens + first + bit, mask=held, other=0) << bit
    tl.store(payload + place, tl.where(in_counts, of_count, byte).to(tl.uint8), mask=place < total)


@kernel
def gather_kept(
    planes, blocks, payload, status,
    total, tokens, first_token, block_stride, token_stride, head_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ALIGNED: tl.constexpr,
    ELEMENT: tl.constexpr, BYTES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    mask, ranks, firsts, PARTS: tl.constexpr,
):  # fmt: skip
    """Rows of kept tokens, one behind the other. payload: from where its rows begin.

    mask: int32 [layers, tokens]. ranks: int32 [layers, tokens + 1], kept ones of the prompt before each. firsts: int32
    [layers * parts], tokens of the payload before each layer and part.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    in_chunk = row < total
    plane = row // HEADS // tokens
    token = row // HEADS % tokens
    layer = plane // PARTS
    kept = in_chunk & (tl.load(mask + layer * tokens + token, mask=in_chunk, other=0) != 0)
    rank = tl.load(ranks + layer * (tokens + 1) + token, mask=kept, other=0)
    rank -= tl.load(ranks + layer * (tokens + 1), mask=kept, other=0)
    target = (tl.load(firsts + plane, mask=kept, other=0) + rank) * HEADS + row % HEADS
    in_blocks = row_pointers(
        planes, blocks, row, kept, tokens, first_token, block_stride, token_stride, head_stride,
        HEADS, BLOCK_TOKENS, ALIGNED, ELEMENT, BYTES,
    )[:, None] + column[None, :]  # fmt: skip
    in_payload = payload.to(tl.pointer_type(ELEMENT)) + target[:, None] * HEAD_DIM + column[None, :]
    held = kept[:, None] & (column < HEAD_DIM)[None, :]
    tl.store(in_payload, tl.load(in_blocks, mask=held), mask=held)
