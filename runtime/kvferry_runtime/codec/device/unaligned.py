"""Numbers at places of a payload that need not be aligned, inside kernels: little-endian, byte by byte."""

# The arguments of kernels have Triton's own types, and their constants are upper case as in Triton's own.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

from __future__ import annotations

import triton.language as tl

from kvferry_runtime.codec.device.launch import kernel


@kernel
def store_bytes(first_byte, bits, held, COUNT: tl.constexpr):
    """Write the low `COUNT` bytes of unsigned integers, from pointers of any alignment."""
    for place in tl.static_range(COUNT):
        tl.store(first_byte + place, ((bits >> (8 * place)) & 0xFF).to(tl.uint8), mask=held)


@kernel
def load_bytes(first_byte, held, COUNT: tl.constexpr):
    """uint32 of `COUNT` bytes each; 0 where not held."""
    bits = tl.load(first_byte, mask=held, other=0).to(tl.uint32)
    for place in tl.static_range(1, COUNT):
        bits |= tl.load(first_byte + place, mask=held, other=0).to(tl.uint32) << (8 * place)
    return bits
