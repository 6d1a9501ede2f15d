"""The compiled codec `lossless` on host memory; the bytes are those of `kvferry_runtime.codec.lossless.reference`.

One call handles a chunk of many arrays, given by their addresses and numbers of values; a cursor (array, offset in
it) walks along them. A bf16 group that lies within one array is read or written there; one that crosses arrays, and
every fp32 group, goes through a buffer in the processor's first cache. Loops over full groups have a constant length
and vectorise; only the few stretches of a group that hold an escape are walked value by value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from kvferry_runtime.codec.host.jit import U8, U16, U32, U64, advanced, inlined, kernel, pointer
from kvferry_runtime.codec.lossless import format as lossless

GROUP = lossless.GROUP
_LARGEST_BASE = U8(lossless.LARGEST_BASE)
_BELOW_TOP = U8(lossless.WINDOW - 1)
_STRETCH = 32


@inlined
def _base_and_lowest(words: Any, size: Any) -> Any:
    """Base of a group and its smallest exponent."""
    highest, lowest = U8(0), U8(255)
    for i in range(size):
        exponent = U8(words[i] >> U16(7))
        highest = max(highest, exponent)
        lowest = min(lowest, exponent)
    return (U8(highest - _BELOW_TOP) if highest > _BELOW_TOP else U8(0)), lowest


@inlined
def _split_words(words: Any, size: Any, base: Any, signs: Any, codes: Any) -> None:
    half = (size + 1) // 2
    for i in range(size):
        signs[i] = U8(U8(words[i] >> U16(8)) & U8(0x80)) | U8(words[i] & U16(0x7F))
    for i in range(size - half):
        low = U8(U8(words[i] >> U16(7)) - base)
        high = U8(U8(words[i + half] >> U16(7)) - base)
        codes[i] = U8(U8(low & U8(0xF)) | U8(high << U8(4)))
    if size % 2:
        codes[half - 1] = U8(U8(U8(words[half - 1] >> U16(7)) - base) & U8(0xF))


@inlined
def _write_escapes(words: Any, size: Any, base: Any, escapes: Any) -> Any:
    """Write all escapes of a group and return their number."""
    count = 0
    for start in range(0, size, _STRETCH):
        stretch, length = advanced(words, start), min(_STRETCH, size - start)
        lowest = U8(255)
        for i in range(length):
            lowest = min(lowest, U8(stretch[i] >> U16(7)))
        if lowest < base:
            for i in range(length):
                exponent = U8(stretch[i] >> U16(7))
                if exponent < base:
                    escapes[2 * count] = U8(start + i)
                    escapes[2 * count + 1] = exponent
                    count += 1
    return count


@inlined
def _encode_group(
    words: Any, size: Any, group: Any, signs: Any, codes: Any, bases: Any, counts: Any, escapes: Any, room: Any
) -> Any:
    """Write a group; the number of its escapes, or -1 if there are more than `room`."""
    base, lowest = _base_and_lowest(words, size)
    _split_words(words, size, base, advanced(signs, group * GROUP), advanced(codes, group * (GROUP // 2)))
    count = 0
    if lowest < base:
        if room < size:
            for i in range(size):
                count += 1 if U8(words[i] >> U16(7)) < base else 0
            if count > room:
                return -1
        count = _write_escapes(words, size, base, escapes)
    bases[group] = base
    counts[group] = U8(count)
    return count


@inlined
def _join_words(signs: Any, codes: Any, size: Any, base: Any, words: Any) -> None:
    half = (size + 1) // 2
    for i in range(half):
        exponent = U16(U16(base) + U16(codes[i] & U8(0xF)))
        words[i] = U16(U16(exponent << U16(7)) | U16(U16(signs[i] & U8(0x80)) << U16(8)) | U16(signs[i] & U8(0x7F)))
    for i in range(size - half):
        sign = signs[i + half]
        exponent = U16(U16(base) + U16(codes[i] >> U8(4)))
        words[i + half] = U16(U16(exponent << U16(7)) | U16(U16(sign & U8(0x80)) << U16(8)) | U16(sign & U8(0x7F)))


@inlined
def _replace_exponents(words: Any, escapes: Any, count: Any) -> None:
    for i in range(count):
        position = escapes[2 * i]
        words[position] = U16(U16(words[position] & U16(0x807F)) | U16(U16(escapes[2 * i + 1]) << U16(7)))


@inlined
def _is_sound(bases: Any, counts: Any, groups: Any, last_size: Any, escapes: Any, escape_count: Any) -> Any:
    """Whether joining can go ahead. Positions are below 256: only those of a shorter group need a look."""
    largest, total, furthest = U8(0), U64(0), U8(0)
    for i in range(groups):
        largest = max(largest, bases[i])
    for i in range(groups):
        total = U64(total + U64(counts[i]))
    if largest > _LARGEST_BASE or total != U64(escape_count):
        return False
    for i in range(escape_count - np.int64(counts[groups - 1]), escape_count):
        furthest = max(furthest, escapes[2 * i])
    return furthest < last_size


@inlined
def _gather_bf16(addresses: Any, lengths: Any, array: Any, offset: Any, size: Any, words: Any, _lows: Any) -> Any:
    """Copy `size` values from the cursor on; the cursor behind them."""
    filled = 0
    while filled < size:
        if offset == lengths[array]:
            array, offset = array + 1, 0
        taken = min(size - filled, lengths[array] - offset)
        source, target = advanced(pointer(addresses[array], U16(0)), offset), advanced(words, filled)
        for i in range(taken):
            target[i] = source[i]
        filled, offset = filled + taken, offset + taken
    return array, offset


@inlined
def _gather_fp32(addresses: Any, lengths: Any, array: Any, offset: Any, size: Any, words: Any, lows: Any) -> Any:
    """The same, with low halves apart."""
    filled = 0
    while filled < size:
        if offset == lengths[array]:
            array, offset = array + 1, 0
        taken = min(size - filled, lengths[array] - offset)
        source = advanced(pointer(addresses[array], U32(0)), offset)
        high, low = advanced(words, filled), advanced(lows, filled)
        for i in range(taken):
            high[i] = U16(source[i] >> U32(16))
            low[i] = U16(source[i])
        filled, offset = filled + taken, offset + taken
    return array, offset


@inlined
def _scatter_bf16(addresses: Any, lengths: Any, array: Any, offset: Any, size: Any, words: Any, _lows: Any) -> Any:
    """Copy `size` values to where the cursor is; the cursor behind them."""
    given = 0
    while given < size:
        if offset == lengths[array]:
            array, offset = array + 1, 0
        taken = min(size - given, lengths[array] - offset)
        source, target = advanced(words, given), advanced(pointer(addresses[array], U16(0)), offset)
        for i in range(taken):
            target[i] = source[i]
        given, offset = given + taken, offset + taken
    return array, offset


@inlined
def _scatter_fp32(addresses: Any, lengths: Any, array: Any, offset: Any, size: Any, words: Any, lows: Any) -> Any:
    """The same, together with low halves."""
    given = 0
    while given < size:
        if offset == lengths[array]:
            array, offset = array + 1, 0
        taken = min(size - given, lengths[array] - offset)
        target = advanced(pointer(addresses[array], U32(0)), offset)
        high, low = advanced(words, given), advanced(lows, given)
        for i in range(taken):
            target[i] = U32(U32(U32(high[i]) << U32(16)) | U32(low[i]))
        given, offset = given + taken, offset + taken
    return array, offset


@inlined
def _encode(gather: Any, in_place: Any, addresses: Any, lengths: Any, total: Any, places: Any, room: Any) -> Any:
    lows, signs, codes = pointer(places[0], U16(0)), pointer(places[1], U8(0)), pointer(places[2], U8(0))
    bases, counts, escapes = pointer(places[3], U8(0)), pointer(places[4], U8(0)), pointer(places[5], U8(0))
    buffer = pointer(places[6], U16(0))
    array, offset, found = 0, 0, 0
    for group in range((total + GROUP - 1) // GROUP):
        size = min(GROUP, total - group * GROUP)
        if offset == lengths[array]:
            array, offset = array + 1, 0
        words = buffer
        if in_place and lengths[array] - offset >= size:
            words = advanced(pointer(addresses[array], U16(0)), offset)
            offset += size
        else:
            array, offset = gather(addresses, lengths, array, offset, size, buffer, advanced(lows, group * GROUP))
        behind, left = advanced(escapes, 2 * found), room - found
        if size == GROUP:
            count = _encode_group(words, GROUP, group, signs, codes, bases, counts, behind, left)
        else:
            count = _encode_group(words, size, group, signs, codes, bases, counts, behind, left)
        if count < 0:
            return -1
        found += count
    return found


@inlined
def _decode(
    scatter: Any, in_place: Any, addresses: Any, lengths: Any, total: Any, places: Any, escape_count: Any
) -> Any:
    lows, signs, codes = pointer(places[0], U16(0)), pointer(places[1], U8(0)), pointer(places[2], U8(0))
    bases, counts, escapes = pointer(places[3], U8(0)), pointer(places[4], U8(0)), pointer(places[5], U8(0))
    buffer = pointer(places[6], U16(0))
    groups = (total + GROUP - 1) // GROUP
    if not _is_sound(bases, counts, groups, total - (groups - 1) * GROUP, escapes, escape_count):
        return False
    array, offset, read = 0, 0, np.int64(0)
    for group in range(groups):
        size = min(GROUP, total - group * GROUP)
        if offset == lengths[array]:
            array, offset = array + 1, 0
        is_whole = in_place and lengths[array] - offset >= size
        words = advanced(pointer(addresses[array], U16(0)), offset) if is_whole else buffer
        group_signs, group_codes = advanced(signs, group * GROUP), advanced(codes, group * (GROUP // 2))
        if size == GROUP:
            _join_words(group_signs, group_codes, GROUP, bases[group], words)
        else:
            _join_words(group_signs, group_codes, size, bases[group], words)
        count = np.int64(counts[group])
        _replace_exponents(words, advanced(escapes, 2 * read), count)
        read = read + count
        if is_whole:
            offset += size
        else:
            array, offset = scatter(addresses, lengths, array, offset, size, buffer, advanced(lows, group * GROUP))
    return True


_ADDRESSES, _LENGTHS, _PLACES = types.uint64[::1], types.int64[::1], types.uint64[::1]


@kernel(types.int64(types.boolean, _ADDRESSES, _LENGTHS, types.int64, _PLACES, types.int64))
def encode(is_fp32: Any, addresses: Any, lengths: Any, total: Any, places: Any, room: Any) -> Any:
    """Fill the sections of a payload from `lengths[i]` values at `addresses[i]`, `total` in all.

    places: addresses of low halves, signs, codes, bases, counts, escapes, and of GROUP uint16 to work in.

    Returns the number of escapes, or -1 if there are more than `room`.
    """
    if is_fp32:
        return _encode(_gather_fp32, False, addresses, lengths, total, places, room)
    return _encode(_gather_bf16, True, addresses, lengths, total, places, room)


@kernel(types.boolean(types.boolean, _ADDRESSES, _LENGTHS, types.int64, _PLACES, types.int64))
def decode(is_fp32: Any, addresses: Any, lengths: Any, total: Any, places: Any, escape_count: Any) -> Any:
    """Fill `lengths[i]` values at `addresses[i]` from the sections of a payload; arguments as in `encode`.

    Returns False, with nothing written, if a base, a count or a position cannot be.
    """
    if is_fp32:
        return _decode(_scatter_fp32, False, addresses, lengths, total, places, escape_count)
    return _decode(_scatter_bf16, True, addresses, lengths, total, places, escape_count)
