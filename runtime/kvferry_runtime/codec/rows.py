"""The rows of a chunk as arrays: which element type they have, and the checks before any byte is read or written."""

from __future__ import annotations

import numpy as np

from kvferry_runtime.codec.base import Payload, Rows
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import KvDtype

_ELEMENTS: dict[KvDtype, np.dtype[np.unsignedinteger]] = {
    KvDtype.BF16: np.dtype("<u2"),
    KvDtype.FP16: np.dtype("<u2"),
    KvDtype.FP32: np.dtype("<u4"),
    KvDtype.UINT8: np.dtype("u1"),
}


def element_dtype(dtype: KvDtype) -> np.dtype[np.unsignedinteger]:
    """The unsigned integer of the dtype's width, little-endian, in which rows are handed over."""
    return _ELEMENTS[dtype]


def rows_shape(rows: Rows, dtype: KvDtype) -> tuple[int, int]:
    """Check the arrays and return (rows in all, head_dim).

    Raises:
        LayoutError: no array, or one that is not 2-D, C-contiguous and aligned, of the dtype's element type and of
            the same width as the others. A strided view would otherwise be read as its neighbours.
    """
    if not rows:
        raise LayoutError("a chunk has no rows: at least one array is needed")
    element = _ELEMENTS[dtype]
    head_dim = rows[0].shape[-1] if rows[0].ndim else 0
    total = 0
    for number, array in enumerate(rows):
        flags = array.flags
        if array.dtype != element or array.ndim != 2 or array.shape[1] != head_dim:
            raise LayoutError(
                f"rows array {number} is {array.dtype} {array.shape}: {dtype.value} rows are {element} [n, {head_dim}]"
            )
        if not (flags.c_contiguous and flags.aligned):
            raise LayoutError(
                f"rows array {number} {array.shape} has strides {array.strides}: rows must be C-contiguous and aligned"
            )
        total += array.shape[0]
    if total == 0 or head_dim == 0:
        raise LayoutError(f"a chunk of {total} rows x {head_dim} has no values")
    return total, head_dim


def check_writeable(rows: Rows) -> None:
    """Raises LayoutError if a sink of `decode` is read-only."""
    for number, array in enumerate(rows):
        if not array.flags.writeable:
            raise LayoutError(f"rows array {number} {array.shape} is read-only: decode cannot write into it")


def check_payload(payload: Payload, at_least: int) -> None:
    """Raises LayoutError unless `payload` is one contiguous run of bytes with room for `at_least`."""
    if payload.dtype != np.uint8 or payload.ndim != 1 or not payload.flags.c_contiguous:
        raise LayoutError(f"a payload must be contiguous uint8 [n], this one is {payload.dtype} {payload.shape}")
    if payload.size < at_least:
        raise LayoutError(f"the payload needs {at_least} bytes, the buffer has {payload.size}")
