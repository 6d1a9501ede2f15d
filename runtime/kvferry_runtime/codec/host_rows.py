"""`ScaledRows` methods on host memory, through the compiled kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec import host_kernels
from kvferry_runtime.codec.base import Rows
from kvferry_runtime.codec.scaled_rows import Codes, ScaledRows, Scales
from kvferry_runtime.layout import KvDtype

_CACHE_LINE = 64

_KINDS: Mapping[KvDtype, int] = {
    KvDtype.BF16: host_kernels.BF16,
    KvDtype.FP16: host_kernels.FP16,
    KvDtype.FP32: host_kernels.FP32,
}


class HostRows(ScaledRows):
    """Hands the addresses of the arrays to one kernel call; the caller holds the arrays meanwhile."""

    encode_kernel: ClassVar[Callable[..., int]]
    decode_kernel: ClassVar[Callable[..., bool]]

    def _encode_rows(self, rows: Rows, dtype: KvDtype, codes: Codes, scales: Scales) -> int | None:
        addresses, counts = _table(rows)
        buffer = _line_aligned(codes.shape[1])
        refused = self.encode_kernel(_KINDS[dtype], addresses, counts, buffer, _address(codes), scales)
        return None if refused < 0 else refused

    def _decode_rows(self, codes: Codes, scales: Scales, dtype: KvDtype, rows: Rows) -> bool:
        addresses, counts = _table(rows)
        buffer = _line_aligned(codes.shape[1])
        return self.decode_kernel(_KINDS[dtype], addresses, counts, buffer, _address(codes), scales)


def _table(rows: Rows) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Address and number of rows of each array that has some. Only for arrays that `rows_shape` has passed."""
    counts = [len(array) for array in rows]
    held: Rows = rows if 0 not in counts else [array for array in rows if len(array)]
    try:
        # five times as fast as `_address`, and a paged cache gives hundreds of arrays for a chunk
        addresses = [ctypes.addressof(ctypes.c_char.from_buffer(cast("Any", array))) for array in held]
    except TypeError:  # one is read-only
        addresses = [_address(array) for array in held]
    return np.array(addresses, np.uint64), np.array([count for count in counts if count], np.int64)


def _line_aligned(size: int) -> npt.NDArray[np.float32]:
    """Room for a row of fp32. Vector stores that cross cache lines would halve the speed of every kernel."""
    room = np.empty(size * 4 + _CACHE_LINE, np.uint8)
    start = -_address(room) % _CACHE_LINE
    return room[start : start + size * 4].view(np.float32)


def _address(array: npt.NDArray[np.generic]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
