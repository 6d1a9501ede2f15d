"""Where each row of a chunk lies in an engine's blocks, inside kernels."""

# The arguments of kernels have Triton's own types, and their constants are upper case as in Triton's own.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

from __future__ import annotations

import triton.language as tl

from kvferry_runtime.codec.device.launch import kernel


@kernel
def row_pointers(
    planes, blocks, row, held, tokens, first_token, block_stride, token_stride, head_stride,
    HEADS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ALIGNED: tl.constexpr, ELEMENT: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """Pointers to the first element of these rows of the chunk. held: which of them exist."""
    token_and_plane = row // HEADS
    token = first_token + token_and_plane % tokens
    start = tl.load(planes + token_and_plane // tokens, mask=held, other=0)
    block = tl.load(blocks + token // BLOCK_TOKENS, mask=held, other=0).to(tl.int64)
    token_in_block = (token % BLOCK_TOKENS).to(tl.int64)
    head = (row % HEADS).to(tl.int64)
    offset = block * block_stride + token_in_block * token_stride + head * head_stride
    pointers = (start + offset * BYTES).to(tl.pointer_type(ELEMENT))
    if ALIGNED:
        pointers = tl.multiple_of(pointers, 16)
    return pointers
