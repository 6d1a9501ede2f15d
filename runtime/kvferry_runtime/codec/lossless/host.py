"""Method `lossless` on host memory, compiled. The format is stated in `kvferry_runtime.codec.lossless.format`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.base import ChunkShape, Payload, Rows
from kvferry_runtime.codec.host.addresses import address_of, address_table, line_aligned
from kvferry_runtime.codec.lossless import host_kernels as kernels
from kvferry_runtime.codec.lossless.format import GROUP, Lossless, Sections
from kvferry_runtime.layout import KvDtype


class HostLossless(Lossless):
    """Hands the addresses of the arrays to one kernel call; the caller holds the arrays meanwhile."""

    def _split(self, rows: Rows, shape: ChunkShape, out: Payload, sections: Sections, room: int) -> int | None:
        addresses, counts = address_table(rows)
        buffer = line_aligned(GROUP * 2)
        escapes: int = kernels.encode(
            shape.dtype is KvDtype.FP32, addresses, counts * shape.head_dim, shape.rows * shape.head_dim,
            _places(out, sections, buffer), room,
        )  # fmt: skip
        return None if escapes < 0 else escapes

    def _join(self, payload: Payload, shape: ChunkShape, sections: Sections, escapes: int, rows: Rows) -> bool:
        addresses, counts = address_table(rows)
        buffer = line_aligned(GROUP * 2)
        is_sound: bool = kernels.decode(
            shape.dtype is KvDtype.FP32, addresses, counts * shape.head_dim, shape.rows * shape.head_dim,
            _places(payload, sections, buffer), escapes,
        )  # fmt: skip
        return is_sound


def _places(payload: Payload, sections: Sections, buffer: Payload) -> npt.NDArray[np.uint64]:
    """Addresses as the kernels take them. Valid as long as the caller holds the arrays."""
    start = address_of(payload)
    offsets = (0, sections.signs, sections.codes, sections.bases, sections.counts, sections.escapes)
    return np.array([*(start + offset for offset in offsets), address_of(buffer)], np.uint64)
