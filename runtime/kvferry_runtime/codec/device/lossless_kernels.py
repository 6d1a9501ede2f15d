"""Kernels of `lossless`; the format is stated in `kvferry_runtime.codec.lossless.format`.

Groups of values do not stop where rows do: the kernels see the chunk's values one behind the other, as
`raw_kernels` gathers them. Escapes come last, once it is known how many the groups before have.
"""

# The arguments of kernels have Triton's own types, and their constants are upper case as in Triton's own.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

from __future__ import annotations

import triton.language as tl

from kvferry_runtime.codec.device.base import Problem
from kvferry_runtime.codec.device.launch import kernel
from kvferry_runtime.codec.device.unaligned import load_bytes
from kvferry_runtime.codec.lossless.format import ESCAPE_BYTES, GROUP, LARGEST_BASE, WINDOW

_BAD_LENGTH = tl.constexpr(int(Problem.BAD_LENGTH))
_BAD_SCALE = tl.constexpr(int(Problem.BAD_SCALE))
_VOID_CODE = tl.constexpr(int(Problem.VOID_CODE))
_GROUP = tl.constexpr(GROUP)
_HALF = tl.constexpr(GROUP // 2)
_BELOW_TOP = tl.constexpr(WINDOW - 1)
_LARGEST_BASE = tl.constexpr(LARGEST_BASE)
_ESCAPE_BYTES = tl.constexpr(ESCAPE_BYTES)


@kernel
def group_halves(total, first_group, GROUPS: tl.constexpr, WHOLE: tl.constexpr):
    """Of this program's groups: numbers and which exist, and for each half, [groups, 128], the values and which exist.

    WHOLE: all groups that exist are whole ones. Else there is one, the shorter last one.
    """
    group = first_group + tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    place = tl.arange(0, _HALF)[None, :]
    low = group[:, None] * _GROUP + place
    if WHOLE:
        exists = (group + 1) * _GROUP <= total
        high = low + _HALF
        in_low = exists[:, None] & (place >= 0)
        in_high = in_low
    else:
        size = tl.minimum(tl.maximum(total - group * _GROUP, 0), _GROUP)
        exists = size > 0
        half = (size + 1) // 2
        high = low + half[:, None]
        in_low = place < half[:, None]
        in_high = place < (size - half)[:, None]
    return group, exists, low, in_low, high, in_high


@kernel
def exponents_and_signs(raw, index, held, FP32: tl.constexpr):
    """Exponent, and sign with mantissa, of the bf16 word of each value; and the low half of an fp32 value."""
    bits = tl.load(raw + index, mask=held, other=0).to(tl.uint32)
    low_half = bits & 0xFFFF
    word = bits >> 16 if FP32 else bits
    return ((word >> 7) & 0xFF).to(tl.int32), ((word >> 8) & 0x80) | (word & 0x7F), low_half


@kernel
def split_groups(
    raw, payload, total, first_group, signs, codes, bases, counts,
    ELEMENT: tl.constexpr, FP32: tl.constexpr, GROUPS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """All sections but escapes. raw: the values; signs, codes, bases, counts: where sections begin."""
    words = raw.to(tl.pointer_type(ELEMENT))
    group, exists, low, in_low, high, in_high = group_halves(total, first_group, GROUPS, WHOLE)
    low_exponent, low_sign, low_rest = exponents_and_signs(words, low, in_low, FP32)
    high_exponent, high_sign, high_rest = exponents_and_signs(words, high, in_high, FP32)
    tl.store(payload + signs + low, low_sign.to(tl.uint8), mask=in_low)
    tl.store(payload + signs + high, high_sign.to(tl.uint8), mask=in_high)
    if FP32:
        rest = payload.to(tl.pointer_type(tl.uint16))
        tl.store(rest + low, low_rest.to(tl.uint16), mask=in_low)
        tl.store(rest + high, high_rest.to(tl.uint16), mask=in_high)
    largest = tl.maximum(tl.max(low_exponent, axis=1), tl.max(high_exponent, axis=1))
    base = tl.maximum(largest - _BELOW_TOP, 0)
    low_escapes = in_low & (low_exponent < base[:, None])
    high_escapes = in_high & (high_exponent < base[:, None])
    count = tl.sum(low_escapes.to(tl.int32), axis=1) + tl.sum(high_escapes.to(tl.int32), axis=1)
    low_code = (low_exponent - base[:, None]) & 15
    high_code = tl.where(in_high, (high_exponent - base[:, None]) & 15, 0)
    place = group[:, None] * _HALF + tl.arange(0, _HALF)[None, :]
    tl.store(payload + codes + place, (low_code | (high_code << 4)).to(tl.uint8), mask=in_low)
    tl.store(payload + bases + group, base.to(tl.uint8), mask=exists)
    tl.store(payload + counts + group, count.to(tl.uint8), mask=exists)


@kernel
def store_escapes(escapes, rank, room, position, exponent, escaped):
    held = escaped & (rank < room)
    tl.store(escapes + rank * _ESCAPE_BYTES, position.to(tl.uint8), mask=held)
    tl.store(escapes + rank * _ESCAPE_BYTES + 1, exponent.to(tl.uint8), mask=held)


@kernel
def write_escapes(
    raw, payload, until, total, first_group, bases, escapes, room,
    ELEMENT: tl.constexpr, FP32: tl.constexpr, GROUPS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The last section, as far as there is room. until: int32 [groups], escapes up to and with each group."""
    words = raw.to(tl.pointer_type(ELEMENT))
    group, exists, low, in_low, high, in_high = group_halves(total, first_group, GROUPS, WHOLE)
    low_exponent, _, _ = exponents_and_signs(words, low, in_low, FP32)
    high_exponent, _, _ = exponents_and_signs(words, high, in_high, FP32)
    base = tl.load(payload + bases + group, mask=exists, other=0).to(tl.int32)
    low_escapes = (in_low & (low_exponent < base[:, None])).to(tl.int32)
    high_escapes = (in_high & (high_exponent < base[:, None])).to(tl.int32)
    of_low = tl.sum(low_escapes, axis=1)
    before = tl.load(until + group, mask=exists, other=0) - of_low - tl.sum(high_escapes, axis=1)
    low_rank = before[:, None] + tl.cumsum(low_escapes, axis=1) - low_escapes
    high_rank = (before + of_low)[:, None] + tl.cumsum(high_escapes, axis=1) - high_escapes
    store_escapes(payload + escapes, low_rank, room, low - group[:, None] * _GROUP, low_exponent, low_escapes != 0)
    store_escapes(payload + escapes, high_rank, room, high - group[:, None] * _GROUP, high_exponent, high_escapes != 0)


@kernel
def finish(raw, payload, status, found, escapes, room, raw_bytes, SIZE: tl.constexpr):
    """Write the length into `status`; and the raw bytes over everything if there are more escapes than room."""
    count = tl.load(found)
    if tl.program_id(0) == 0:
        tl.store(status + 1, tl.where(count > room, raw_bytes, escapes + count * _ESCAPE_BYTES))
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    held = (place < raw_bytes) & (count > room)
    tl.store(payload + place, tl.load(raw + place, mask=held, other=0), mask=held)


@kernel
def restored_words(payload, signs, index, held, exponent, FP32: tl.constexpr):
    sign = tl.load(payload + signs + index, mask=held, other=0).to(tl.uint32)
    word = ((sign & 0x80) << 8) | (exponent.to(tl.uint32) << 7) | (sign & 0x7F)
    if FP32:
        word = (word << 16) | load_bytes(payload + index * 2, held, 2)
    return word


@kernel
def join_groups(
    raw, payload, status, until, total, first_group, signs, codes, bases, found,
    ELEMENT: tl.constexpr, FP32: tl.constexpr, GROUPS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Fill `raw` as if there were no escapes. found: as many escapes as the payload's length leaves room for."""
    words = raw.to(tl.pointer_type(ELEMENT))
    group, exists, low, in_low, high, in_high = group_halves(total, first_group, GROUPS, WHOLE)
    base = tl.load(payload + bases + group, mask=exists, other=0).to(tl.int32)
    tl.atomic_or(status + tl.zeros_like(group), _BAD_SCALE, mask=base > _LARGEST_BASE)
    last = exists & ((group + 1) * _GROUP >= total)
    counted = tl.load(until + group, mask=last, other=0)
    tl.atomic_or(status + tl.zeros_like(group), _BAD_LENGTH, mask=last & (counted != found))
    place = group[:, None] * _HALF + tl.arange(0, _HALF)[None, :]
    pairs = tl.load(payload + codes + place, mask=in_low, other=0).to(tl.int32)
    low_word = restored_words(payload, signs, low, in_low, (base[:, None] + (pairs & 15)) & 0xFF, FP32)
    high_word = restored_words(payload, signs, high, in_high, (base[:, None] + (pairs >> 4)) & 0xFF, FP32)
    tl.store(words + low, low_word.to(ELEMENT), mask=in_low)
    tl.store(words + high, high_word.to(ELEMENT), mask=in_high)


@kernel
def apply_escapes(
    raw, payload, status, until, total, first_group, signs, counts, escapes, found,
    ELEMENT: tl.constexpr, FP32: tl.constexpr, GROUPS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Put the exponents of escapes into `raw`; one outside of its group is noted in `status`."""
    words = raw.to(tl.pointer_type(ELEMENT))
    group, exists, _, _, _, _ = group_halves(total, first_group, GROUPS, WHOLE)
    count = tl.load(payload + counts + group, mask=exists, other=0).to(tl.int32)
    before = tl.load(until + group, mask=exists, other=0) - count
    number = tl.arange(0, _GROUP)[None, :]
    rank = before[:, None] + number
    held = (number < count[:, None]) & (rank < found)
    place = payload + escapes + rank * _ESCAPE_BYTES
    index = group[:, None] * _GROUP + tl.load(place, mask=held, other=0).to(tl.int32)
    exponent = tl.load(place + 1, mask=held, other=0)
    outside = tl.max((held & (index >= total)).to(tl.int32), axis=1) != 0
    tl.atomic_or(status + tl.zeros_like(group), _VOID_CODE, mask=outside)
    held = held & (index < total)
    tl.store(words + index, restored_words(payload, signs, index, held, exponent, FP32).to(ELEMENT), mask=held)
