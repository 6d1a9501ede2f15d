"""The two passes of `fp8-head` and `fp8-tensor` on host memory: magnitudes of all rows first, then their codes."""

from __future__ import annotations

from typing import Any

from numba import types

from kvferry_runtime.codec.fp8 import format as fp8
from kvferry_runtime.codec.fp8.host_kernels import quantised
from kvferry_runtime.codec.host.elements import (
    BF16,
    FP16,
    as_fp32_bf16,
    as_fp32_fp16,
    as_fp32_fp32,
    magnitude_16,
    magnitude_32,
    widened_bf16,
    widened_fp16,
    widened_fp32,
)  # fmt: skip
from kvferry_runtime.codec.host.jit import F32, U16, U32, kernel
from kvferry_runtime.codec.scaled.host_loops import largest_of_rows, quantise_rows, scale_and_factor

_TOP, _BOUND = F32(fp8.LARGEST_CODE), F32(fp8.SMALLEST_SCALE)
_BITS, _FLOATS = types.uint32[::1], types.float32[::1]
_ROWS = (types.int64, types.uint64[::1], types.int64[::1], types.int64)


@kernel(types.void(*_ROWS, _BITS))
def magnitudes(kind: Any, addresses: Any, counts: Any, head_dim: Any, largest: Any) -> Any:
    """Fill the fp32 bits of each row's largest magnitude [rows]: at least those of infinity if one is not finite."""
    if kind == BF16:
        largest_of_rows(magnitude_16, as_fp32_bf16, U16(0), addresses, counts, head_dim, largest)
    elif kind == FP16:
        largest_of_rows(magnitude_16, as_fp32_fp16, U16(0), addresses, counts, head_dim, largest)
    else:
        largest_of_rows(magnitude_32, as_fp32_fp32, U32(0), addresses, counts, head_dim, largest)


@kernel(types.void(_BITS, _FLOATS, _FLOATS))
def scales_and_factors(largest: Any, scales: Any, factors: Any) -> Any:
    """Scales and factors for largest magnitudes given as bits of fp32; all [scales]."""
    for i in range(largest.size):
        scale, factor = scale_and_factor(largest[i], _TOP, _BOUND)
        scales[i] = scale
        factors[i] = factor


@kernel(types.void(*_ROWS, types.uint64, _FLOATS))
def quantise(kind: Any, addresses: Any, counts: Any, head_dim: Any, codes: Any, factors: Any) -> Any:
    """Fill codes [rows, head_dim] at an address, with a factor for each row."""
    if kind == BF16:
        quantise_rows(widened_bf16, quantised, U16(0), addresses, counts, head_dim, codes, factors)
    elif kind == FP16:
        quantise_rows(widened_fp16, quantised, U16(0), addresses, counts, head_dim, codes, factors)
    else:
        quantise_rows(widened_fp32, quantised, U32(0), addresses, counts, head_dim, codes, factors)
