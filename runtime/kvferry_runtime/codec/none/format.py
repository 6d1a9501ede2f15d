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

from kvferry_runtime.codec.base import ChunkShape, Codec, Payload, Rows
from kvferry_runtime.codec.none.blocks import gather, have_long_runs, scatter
from kvferry_runtime.codec.paged_rows import PagedRows
from kvferry_runtime.codec.rows import check_payload, check_rows, check_writeable, element_dtype
from kvferry_runtime.errors import CorruptPayload
from kvferry_runtime.layout import LayerShape


class NoneCodec(Codec):
    """Copies; carries every dtype and every bit pattern."""

    name: ClassVar[str] = "none"
    wire_id: ClassVar[int] = 0
    lossy: ClassVar[bool] = False

    def supports(self, shape: LayerShape) -> str | None:
        return None

    def max_wire_bytes(self, shape: ChunkShape) -> int:
        """Exact."""
        return shape.raw_bytes

    def encode(self, rows: Rows, shape: ChunkShape, out: Payload) -> int:
        check_rows(rows, shape)
        length = shape.raw_bytes
        check_payload(out, length)
        elements = out[:length].view(element_dtype(shape.dtype)).reshape(shape.rows, shape.head_dim)
        if isinstance(rows, PagedRows) and have_long_runs(rows):
            gather(rows, elements)
        else:
            np.concatenate(list(rows), out=elements, casting="no")
        return length

    def decode(self, payload: Payload, shape: ChunkShape, rows: Rows) -> None:
        check_rows(rows, shape)
        check_writeable(rows)
        check_payload(payload, 0)
        if payload.size != shape.raw_bytes:
            raise CorruptPayload(f"none: {shape} has {shape.raw_bytes} bytes, not {payload.size}")
        elements = payload.view(element_dtype(shape.dtype)).reshape(shape.rows, shape.head_dim)
        if isinstance(rows, PagedRows) and have_long_runs(rows):
            scatter(elements, rows)
            return
        start = 0
        for array in rows:
            array[:] = elements[start : start + len(array)]
            start += len(array)
