"""The loops over rows that the compiled methods with one scale for many elements share.

One call handles a chunk of many arrays, given by their addresses: a call for each block of a paged cache would take
and release the GIL as often, and each time wait for whatever else runs Python. Inside, rows are bare pointers with a
size, as numba would count references of arrays for every row.
"""

from __future__ import annotations

from typing import Any

from kvferry_runtime.codec.host.elements import INFINITY
from kvferry_runtime.codec.host.jit import F32, U8, U32, advanced, fetch_ahead, float_of, inlined, pointer

_SHORT_ELEMENTS = 32768
"""An array of no more is over before the processor has noticed that it is read in order: it is asked for lines."""
_ROWS_AHEAD = 16
_LINE_ELEMENTS = 32
"""Of 16 bits, in a cache line."""
_CHECKED_BYTES = 4096
"""So many codes are looked at, whether they stand for a value, before they are restored out of the first cache."""


@inlined
def scale_and_factor(largest: Any, largest_code: Any, smallest_scale: Any) -> Any:
    """Scale for this largest magnitude (bits of fp32), and the factor that turns elements into codes."""
    if largest == U32(0):
        return F32(1), F32(1)
    scale = F32(float_of(largest) / largest_code)
    if scale < smallest_scale:
        return smallest_scale, F32(F32(1) / smallest_scale)
    return scale, F32(largest_code / float_of(largest))


@inlined
def _fetch_row_ahead(addresses: Any, counts: Any, segment: Any, index: Any, head_dim: Any, word: Any) -> None:
    """Ask for the row `_ROWS_AHEAD` behind this one, in this array or in the next."""
    beyond = index + _ROWS_AHEAD - counts[segment]
    if beyond < 0:
        row = advanced(pointer(addresses[segment], word), (index + _ROWS_AHEAD) * head_dim)
    else:
        row = advanced(pointer(addresses[min(segment + 1, addresses.size - 1)], word), beyond * head_dim)
    for i in range(0, head_dim, _LINE_ELEMENTS):
        fetch_ahead(advanced(row, i))


@inlined
def encode_rows(
    magnitude: Any, as_fp32: Any, widened: Any, quantised: Any, word: Any, largest_code: Any, smallest_scale: Any,
    addresses: Any, counts: Any, head_dim: Any, code_address: Any, scales: Any,
) -> Any:  # fmt: skip
    """A scale for each row. Returns -1, or the number of the first row that holds a NaN or an infinity."""
    row = 0
    for segment in range(addresses.size):
        is_short = counts[segment] * head_dim <= _SHORT_ELEMENTS
        for index in range(counts[segment]):
            words = advanced(pointer(addresses[segment], word), index * head_dim)
            codes = advanced(pointer(code_address, U8(0)), row * head_dim)
            if is_short:
                _fetch_row_ahead(addresses, counts, segment, index, head_dim, word)
            largest = magnitude(word)
            for i in range(head_dim):
                largest = max(largest, magnitude(words[i]))
            if as_fp32(largest) >= INFINITY:
                return row
            scale, factor = scale_and_factor(as_fp32(largest), largest_code, smallest_scale)
            scales[row] = scale
            for i in range(head_dim):
                codes[i] = quantised(F32(widened(words[i]) * factor))
            row += 1
    return -1


@inlined
def decode_rows(
    narrowed: Any, restored: Any, oddness: Any, odd: Any, word: Any,
    addresses: Any, counts: Any, head_dim: Any, code_address: Any, scales: Any,
) -> Any:  # fmt: skip
    """Returns False if a code stands for no value, which shows as the largest `oddness`: `odd`."""
    rows_checked = max(1, _CHECKED_BYTES // head_dim)
    row = 0
    for segment in range(addresses.size):
        start = pointer(addresses[segment], word)
        for first in range(0, counts[segment], rows_checked):
            rows = min(rows_checked, counts[segment] - first)
            codes = advanced(pointer(code_address, U8(0)), row * head_dim)
            # looking for the largest is much faster than for an equal one
            largest = U8(0)
            for i in range(rows * head_dim):
                largest = max(largest, oddness(codes[i]))
            if largest == odd:
                return False
            for index in range(rows):
                words = advanced(start, (first + index) * head_dim)
                of_row = advanced(codes, index * head_dim)
                scale = scales[row + index]
                for i in range(head_dim):
                    words[i] = narrowed(restored(of_row[i], scale))
            row += rows
    return True


@inlined
def largest_of_rows(
    magnitude: Any, as_fp32: Any, word: Any, addresses: Any, counts: Any, head_dim: Any, largest_of_row: Any
) -> None:
    """Fill the fp32 bits of each row's largest magnitude."""
    row = 0
    for segment in range(addresses.size):
        for index in range(counts[segment]):
            words = advanced(pointer(addresses[segment], word), index * head_dim)
            largest = magnitude(word)
            for i in range(head_dim):
                largest = max(largest, magnitude(words[i]))
            largest_of_row[row] = as_fp32(largest)
            row += 1


@inlined
def quantise_rows(
    widened: Any, quantised: Any, word: Any, addresses: Any, counts: Any, head_dim: Any, code_address: Any,
    factors: Any,
) -> None:  # fmt: skip
    """Codes with a factor given for each row."""
    row = 0
    for segment in range(addresses.size):
        for index in range(counts[segment]):
            words = advanced(pointer(addresses[segment], word), index * head_dim)
            codes = advanced(pointer(code_address, U8(0)), row * head_dim)
            factor = factors[row]
            for i in range(head_dim):
                codes[i] = quantised(F32(widened(words[i]) * factor))
            row += 1
