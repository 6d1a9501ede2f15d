"""The compiled codecs `int8` and `fp8` on host memory; the bytes are those of `kvferry_runtime.codec.reference`.

A row goes through a buffer of fp32 values that stays in the processor's first cache: one loop for each dtype fills
it, one for each method makes codes of it, and the other way round. All loops vectorise.

One call handles a chunk of many arrays, given by their addresses: a call for each block of a paged cache would take
and release the GIL as often, and each time wait for whatever else runs Python. Inside, rows are bare pointers with a
size, as numba would count references of arrays for every row.

All compiled code of the two methods is in this file, as numba's cache notices changes of a kernel's own file only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from kvferry_runtime.codec import fp8, int8
from kvferry_runtime.codec.host_jit import F32, U8, U16, U32, U64, advanced, bits_of, float_of, inlined, kernel, pointer

BF16, FP16, FP32 = 0, 1, 2

_INFINITY = U32(0x7F800000)
_SIGN = U32(0x80000000)

# fp16: exponent bias 15 against 127 in fp32, 13 mantissa bits fewer
_FP16_REBIAS = U32((127 - 15) << 23)
_FP16_SMALLEST_NORMAL = U32((127 - 14) << 23)

# adding 1.5 * 2^23 leaves the integer nearest to a small float in the low bits of the sum, ties to even
_ROUND_TO_INTEGER = F32(1.5 * 2**23)

# Adding 2^(e + 20) to a magnitude in [2^e, 2^(e + 1)) rounds it to a multiple of 2^(e - 3), ties to even, and leaves
# the multiple (8 to 16: a carry moves into the exponent) in the low bits; below 2^-6, with e = -6, it is 0 to 8. The
# code is that plus 8 * (e + 6). The addend's own low bits hold what makes up the difference between 8 * (e + 6) and
# its exponent field shifted right by 20, modulo 256; the number is even, so ties stay as they are.
_FP8_SMALLEST_NORMAL = U32((127 - 6) << 23)
_FP8_ADDEND = U32((20 << 23) + (-(8 * (127 - 6) + (20 << 3))) % 256)
_FP8_REBIAS = U32((127 - 7) << 23)


@inlined
def _load_bf16(words: Any, values: Any, size: Any) -> Any:
    """Widen a row; return the bits, as fp32, of its largest magnitude."""
    largest = U16(0)
    for i in range(size):
        largest = max(largest, U16(words[i] & U16(0x7FFF)))
    for i in range(size):
        values[i] = float_of(U32(U32(words[i]) << U32(16)))
    return U32(U32(largest) << U32(16))


@inlined
def _load_fp16(words: Any, values: Any, size: Any) -> Any:
    largest = U16(0)
    for i in range(size):
        largest = max(largest, U16(words[i] & U16(0x7FFF)))
    for i in range(size):
        values[i] = _widen_fp16(words[i])
    if largest >= U16(0x7C00):
        return _INFINITY
    return bits_of(_widen_fp16(largest))


@inlined
def _widen_fp16(word: Any) -> Any:
    """A finite fp16 as fp32. A subnormal is the fraction of the smallest normal, less that normal."""
    magnitude = U32(U32(word & U16(0x7FFF)) << U32(13))
    sign = U32(U32(word & U16(0x8000)) << U32(16))
    normal = float_of(U32(magnitude + _FP16_REBIAS))
    subnormal = F32(float_of(U32(magnitude + _FP16_SMALLEST_NORMAL)) - float_of(_FP16_SMALLEST_NORMAL))
    value = normal if magnitude >= U32(1 << 23) else subnormal
    return float_of(U32(bits_of(value) | sign))


@inlined
def _load_fp32(words: Any, values: Any, size: Any) -> Any:
    largest = U32(0)
    for i in range(size):
        largest = max(largest, U32(words[i] & ~_SIGN))
    for i in range(size):
        values[i] = float_of(words[i])
    return largest


@inlined
def _store_bf16(values: Any, words: Any, size: Any) -> None:
    for i in range(size):
        bits = bits_of(values[i])
        words[i] = U16(U32(bits + U32(0x7FFF) + U32(U32(bits >> U32(16)) & U32(1))) >> U32(16))


@inlined
def _store_fp16(values: Any, words: Any, size: Any) -> None:
    """Adding 0.5 rounds a magnitude below the smallest normal to a multiple of 2^-24, which is its code."""
    for i in range(size):
        bits = bits_of(values[i])
        magnitude = U32(bits & ~_SIGN)
        odd = U32(U32(magnitude >> U32(13)) & U32(1))
        normal = U32(U32(magnitude - _FP16_REBIAS + U32(0xFFF) + odd) >> U32(13))
        subnormal = U32(bits_of(F32(float_of(magnitude) + F32(0.5))) - bits_of(F32(0.5)))
        code = normal if magnitude >= _FP16_SMALLEST_NORMAL else subnormal
        words[i] = U16(U32(code | U32(U32(bits & _SIGN) >> U32(16))))


@inlined
def _store_fp32(values: Any, words: Any, size: Any) -> None:
    """The product of the largest scale and code may exceed the largest fp32 by its rounding: that saturates."""
    largest = U32(_INFINITY - U32(1))
    for i in range(size):
        bits = bits_of(values[i])
        magnitude = U32(bits & ~_SIGN)
        words[i] = U32((magnitude if magnitude < largest else largest) | U32(bits & _SIGN))


@inlined
def _scale(largest: Any, largest_code: Any, smallest_scale: Any) -> Any:
    """Scale of a row and the factor that turns its elements into codes."""
    if largest == U32(0):
        return F32(1), F32(1)
    scale = F32(float_of(largest) / largest_code)
    if scale < smallest_scale:
        return smallest_scale, F32(F32(1) / smallest_scale)
    return scale, F32(largest_code / float_of(largest))


@inlined
def _quantise_int8(values: Any, factor: Any, codes: Any, size: Any) -> None:
    """No element needs saturation: magnitude times factor is 127, give or take its rounding."""
    for i in range(size):
        codes[i] = U8(bits_of(F32(F32(values[i] * factor) + _ROUND_TO_INTEGER)))


@inlined
def _restore_int8(codes: Any, scale: Any, values: Any, size: Any) -> None:
    for i in range(size):
        values[i] = F32(F32(np.int8(codes[i])) * scale)


@inlined
def _quantise_fp8(values: Any, factor: Any, codes: Any, size: Any) -> None:
    """No element needs saturation: magnitude times factor is 448, give or take its rounding."""
    for i in range(size):
        bits = bits_of(F32(values[i] * factor))
        power = U32(bits & _INFINITY)
        addend = U32((power if power > _FP8_SMALLEST_NORMAL else _FP8_SMALLEST_NORMAL) + _FP8_ADDEND)
        rounded = bits_of(F32(float_of(U32(bits & ~_SIGN)) + float_of(addend)))
        magnitude = U32(rounded + U32(addend >> U32(20)))
        codes[i] = U8(U32(magnitude | U32(U32(bits >> U32(24)) & U32(0x80))))


@inlined
def _restore_fp8(codes: Any, scale: Any, values: Any, size: Any) -> None:
    """A subnormal is twice what it would be as a normal, less the smallest normal; no fp32 in between is subnormal."""
    for i in range(size):
        magnitude = U32(U32(codes[i]) & U32(0x7F))
        subnormal = magnitude < U32(8)
        bits = U32(U32(magnitude << U32(20)) + (_FP8_REBIAS + U32(1 << 23) if subnormal else _FP8_REBIAS))
        value = F32(float_of(bits) - (float_of(_FP8_SMALLEST_NORMAL) if subnormal else F32(0)))
        sign = U32(U32(codes[i] & U8(0x80)) << U32(24))
        values[i] = float_of(U32(bits_of(F32(value * scale)) | sign))


@inlined
def _void_int8(codes: Any, size: Any) -> Any:
    """Whether a code stands for no value. Looking for the largest is much faster than for an equal one."""
    largest = U8(0)
    for i in range(size):
        largest = max(largest, U8(codes[i] ^ U8(~int8.VOID_CODE & 0xFF)))
    return largest == U8(0xFF)


@inlined
def _void_fp8(codes: Any, size: Any) -> Any:
    largest = U8(0)
    for i in range(size):
        largest = max(largest, U8(codes[i] & U8(0x7F)))
    return largest == U8(fp8.VOID_MAGNITUDE)


@inlined
def _encode(
    load: Any, word: Any, quantise: Any, largest_code: Any, smallest_scale: Any,
    addresses: Any, counts: Any, buffer: Any, code_address: Any, scales: Any,
) -> Any:  # fmt: skip
    head_dim = buffer.size
    values, codes = pointer(U64(buffer.ctypes.data), F32(0)), pointer(code_address, U8(0))
    row = 0
    for segment in range(addresses.size):
        start = pointer(addresses[segment], word)
        for index in range(counts[segment]):
            largest = load(advanced(start, index * head_dim), values, head_dim)
            if largest >= _INFINITY:
                return row
            scale, factor = _scale(largest, largest_code, smallest_scale)
            scales[row] = scale
            quantise(values, factor, advanced(codes, row * head_dim), head_dim)
            row += 1
    return -1


@inlined
def _decode(
    store: Any, word: Any, restore: Any, addresses: Any, counts: Any, buffer: Any, code_address: Any, scales: Any
) -> None:
    head_dim = buffer.size
    values, codes = pointer(U64(buffer.ctypes.data), F32(0)), pointer(code_address, U8(0))
    row = 0
    for segment in range(addresses.size):
        start = pointer(addresses[segment], word)
        for index in range(counts[segment]):
            restore(advanced(codes, row * head_dim), scales[row], values, head_dim)
            store(values, advanced(start, index * head_dim), head_dim)
            row += 1


_INT8_LARGEST, _INT8_SMALLEST_SCALE = F32(int8.LARGEST_CODE), F32(int8.SMALLEST_SCALE)
_FP8_LARGEST, _FP8_SMALLEST_SCALE = F32(fp8.LARGEST_CODE), F32(fp8.SMALLEST_SCALE)

_ADDRESSES, _COUNTS, _FLOATS = types.uint64[::1], types.int64[::1], types.float32[::1]
_ENCODE = types.int64(types.int64, _ADDRESSES, _COUNTS, _FLOATS, types.uint64, _FLOATS)
_DECODE = types.boolean(types.int64, _ADDRESSES, _COUNTS, _FLOATS, types.uint64, _FLOATS)


@kernel(_ENCODE)
def encode_int8(kind: Any, addresses: Any, counts: Any, buffer: Any, code_address: Any, scales: Any) -> Any:
    """Fill `scales` [rows], and codes [rows, head_dim] at `code_address`, from `counts[i]` rows at `addresses[i]`.

    buffer: [head_dim], to work in.

    Returns -1, or the number of the first row that holds a NaN or an infinity.
    """
    top, bound = _INT8_LARGEST, _INT8_SMALLEST_SCALE
    if kind == BF16:
        return _encode(_load_bf16, U16(0), _quantise_int8, top, bound, addresses, counts, buffer, code_address, scales)
    if kind == FP16:
        return _encode(_load_fp16, U16(0), _quantise_int8, top, bound, addresses, counts, buffer, code_address, scales)
    return _encode(_load_fp32, U32(0), _quantise_int8, top, bound, addresses, counts, buffer, code_address, scales)


@kernel(_ENCODE)
def encode_fp8(kind: Any, addresses: Any, counts: Any, buffer: Any, code_address: Any, scales: Any) -> Any:
    """As `encode_int8`."""
    top, bound = _FP8_LARGEST, _FP8_SMALLEST_SCALE
    if kind == BF16:
        return _encode(_load_bf16, U16(0), _quantise_fp8, top, bound, addresses, counts, buffer, code_address, scales)
    if kind == FP16:
        return _encode(_load_fp16, U16(0), _quantise_fp8, top, bound, addresses, counts, buffer, code_address, scales)
    return _encode(_load_fp32, U32(0), _quantise_fp8, top, bound, addresses, counts, buffer, code_address, scales)


@kernel(_DECODE)
def decode_int8(kind: Any, addresses: Any, counts: Any, buffer: Any, code_address: Any, scales: Any) -> Any:
    """Fill `counts[i]` rows at `addresses[i]` from the codes at `code_address`; arguments as in `encode_int8`.

    Returns False, with nothing written, if a code stands for no value.
    """
    if _void_int8(pointer(code_address, U8(0)), scales.size * buffer.size):
        return False
    if kind == BF16:
        _decode(_store_bf16, U16(0), _restore_int8, addresses, counts, buffer, code_address, scales)
    elif kind == FP16:
        _decode(_store_fp16, U16(0), _restore_int8, addresses, counts, buffer, code_address, scales)
    else:
        _decode(_store_fp32, U32(0), _restore_int8, addresses, counts, buffer, code_address, scales)
    return True


@kernel(_DECODE)
def decode_fp8(kind: Any, addresses: Any, counts: Any, buffer: Any, code_address: Any, scales: Any) -> Any:
    """As `decode_int8`."""
    if _void_fp8(pointer(code_address, U8(0)), scales.size * buffer.size):
        return False
    if kind == BF16:
        _decode(_store_bf16, U16(0), _restore_fp8, addresses, counts, buffer, code_address, scales)
    elif kind == FP16:
        _decode(_store_fp16, U16(0), _restore_fp8, addresses, counts, buffer, code_address, scales)
    else:
        _decode(_store_fp32, U32(0), _restore_fp8, addresses, counts, buffer, code_address, scales)
    return True
