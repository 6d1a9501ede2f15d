"""The rows of a chunk as arrays: which element type they have, and the checks before any byte is read or written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvferry_runtime.codec.base import ChunkShape, Payload, Rows
from kvferry_runtime.codec.paged_rows import PagedRows
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


def row_count(rows: Rows) -> int:
    """Rows of all arrays."""
    return rows.total if isinstance(rows, PagedRows) else sum(map(len, rows))


def joined_rows(pieces: Sequence[Rows]) -> Rows:
    """The arrays of all pieces, one behind the other; paged rows stay paged."""
    paged = [piece for piece in pieces if isinstance(piece, PagedRows)]
    if paged and len(paged) == len(pieces):
        return PagedRows.joined(paged)
    return [array for piece in pieces for array in piece]


def check_rows(rows: Rows, shape: ChunkShape) -> None:
    """Check that the arrays hold exactly the rows of `shape`.

    Raises:
        LayoutError: too few or too many rows, or an array that is not 2-D, C-contiguous and aligned, of the dtype's
            element type and of `head_dim` values a row. A strided view would otherwise be read as its neighbours.
    """
    element, head_dim = _ELEMENTS[shape.dtype], shape.head_dim
    if isinstance(rows, PagedRows) and rows.has(element, head_dim):
        _check_total(rows.total, shape)
        return
    total = 0
    for number, array in enumerate(rows):
        flags = array.flags
        if array.dtype != element or array.ndim != 2 or array.shape[1] != head_dim:
            raise LayoutError(
                f"rows array {number} is {array.dtype} {array.shape}: {shape.dtype.value} rows are {element} "
                f"[n, {head_dim}]"
            )
        if not (flags.c_contiguous and flags.aligned):
            raise LayoutError(
                f"rows array {number} {array.shape} has strides {array.strides}: rows must be C-contiguous and aligned"
            )
        total += array.shape[0]
    _check_total(total, shape)


def _check_total(total: int, shape: ChunkShape) -> None:
    if total != shape.rows or not total or not shape.head_dim:
        raise LayoutError(f"the arrays hold {total} rows, {shape} has {shape.rows} of {shape.head_dim} values")


def check_writeable(rows: Rows) -> None:
    """Raises LayoutError if a sink of `decode` is read-only."""
    if isinstance(rows, PagedRows) and rows.writeable:
        return
    for number, array in enumerate(rows):
        if not array.flags.writeable:
            raise LayoutError(f"rows array {number} {array.shape} is read-only: decode cannot write into it")


def check_payload(payload: Payload, at_least: int) -> None:
    """Raises LayoutError unless `payload` is one contiguous run of bytes with room for `at_least`."""
    if payload.dtype != np.uint8 or payload.ndim != 1 or not payload.flags.c_contiguous:
        raise LayoutError(f"a payload must be contiguous uint8 [n], this one is {payload.dtype} {payload.shape}")
    if payload.size < at_least:
        raise LayoutError(f"the payload needs {at_least} bytes, the buffer has {payload.size}")
