"""Method `none`, wire id 0: the raw bytes, bit for bit.

Payload, little-endian:

======  =================================================
offset  content
======  =================================================
0       elements [rows, head_dim], as they are in memory
======  =================================================
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kvferry_runtime.codec.base import Codec, Payload, Rows
from kvferry_runtime.codec.rows import check_payload, check_writeable, element_dtype, rows_shape
from kvferry_runtime.errors import CorruptPayload
from kvferry_runtime.layout import KvDtype


class NoneCodec(Codec):
    """Copies; carries every dtype and every bit pattern."""

    name: ClassVar[str] = "none"
    wire_id: ClassVar[int] = 0
    lossy: ClassVar[bool] = False

    def supports(self, dtype: KvDtype, head_dim: int) -> str | None:
        return None

    def max_wire_bytes(self, rows: int, head_dim: int, dtype: KvDtype) -> int:
        """Exact."""
        return rows * head_dim * dtype.itemsize

    def encode(self, rows: Rows, dtype: KvDtype, out: Payload) -> int:
        """Raises LayoutError if the arrays are no rows of `dtype` or `out` is too small."""
        total, head_dim = rows_shape(rows, dtype)
        length = self.max_wire_bytes(total, head_dim, dtype)
        check_payload(out, length)
        elements = out[:length].view(element_dtype(dtype)).reshape(total, head_dim)
        np.concatenate(rows, out=elements, casting="no")
        return length

    def decode(self, payload: Payload, dtype: KvDtype, rows: Rows) -> None:
        """Raises CorruptPayload if the length does not fit, LayoutError if the arrays are no sinks of `dtype`."""
        total, head_dim = rows_shape(rows, dtype)
        check_writeable(rows)
        check_payload(payload, 0)
        length = self.max_wire_bytes(total, head_dim, dtype)
        if payload.size != length:
            raise CorruptPayload(
                f"none: {total} rows of {head_dim} {dtype.value} are {length} bytes, not {payload.size}"
            )
        elements = payload.view(element_dtype(dtype)).reshape(total, head_dim)
        start = 0
        for array in rows:
            array[:] = elements[start : start + len(array)]
            start += len(array)
