"""Where the arrays of a chunk lie in host memory: what compiled kernels take instead of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from kvferry_runtime.codec.base import Rows
from kvferry_runtime.codec.host.jit import U64, kernel, pointer
from kvferry_runtime.codec.paged_rows import PagedRows

_CACHE_LINE = 64


def address_table(rows: Rows) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Address and number of rows of each array that has some. Only for arrays that `check_rows` has passed.

    Hundreds of arrays are asked all at once: to ask each of them in Python takes longer than to encode it.
    """
    if isinstance(rows, PagedRows):
        return rows.addresses, rows.counts
    if len(rows) == 1:
        return np.array([address_of(rows[0])], np.uint64), np.array([len(rows[0])], np.int64)
    counts = [len(array) for array in rows]
    held: Rows = rows if 0 not in counts else [array for array in rows if len(array)]
    addresses = np.fromiter(map(id, held), np.uint64, len(held))
    _follow(addresses, _DATA_OFFSET)
    return addresses, np.array([count for count in counts if count], np.int64)


def line_aligned(size: int) -> npt.NDArray[np.uint8]:
    """Room for `size` bytes. Vector stores that cross cache lines would halve the speed of every kernel."""
    room = np.empty(size + _CACHE_LINE, np.uint8)
    start = -address_of(room) % _CACHE_LINE
    return room[start : start + size]


def address_of(array: npt.NDArray[np.generic]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


_DATA_OFFSET = object.__basicsize__
"""Where an array's object has the address of its elements: behind the head that every object has.

So it is in numpy's C interface (`PyArrayObject_fields` in `ndarraytypes.h`); `id` is an object's address in CPython.
"""


@kernel(types.void(types.uint64[::1], types.int64))
def _follow(places: Any, offset: Any) -> Any:
    """Replace each address by the one that is kept `offset` bytes behind it."""
    for i in range(places.size):
        places[i] = pointer(U64(places[i] + U64(offset)), U64(0))[0]
