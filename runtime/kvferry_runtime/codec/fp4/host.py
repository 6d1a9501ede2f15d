"""Method `fp4` on host memory, compiled. The format is stated in `kvferry_runtime.codec.fp4.format`."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.base import ChunkShape, Rows
from kvferry_runtime.codec.fp4 import host_kernels as kernels
from kvferry_runtime.codec.fp4.format import Bytes, Fp4
from kvferry_runtime.codec.host.addresses import address_of, address_table, line_aligned
from kvferry_runtime.codec.host.elements import KINDS
from kvferry_runtime.layout import KvDtype


class HostFp4(Fp4):
    """Hands the addresses of the arrays to one kernel call; the caller holds the arrays meanwhile."""

    def _encode_rows(self, rows: Rows, shape: ChunkShape, codes: Bytes, scales: Bytes, exponents: Bytes) -> int | None:
        addresses, counts = address_table(rows)
        room = _working_memory(shape.head_dim)
        places = _places(codes, scales, exponents, room, shape.head_dim)
        refused = kernels.encode(KINDS[shape.dtype], addresses, counts, shape.head_dim, places)
        return None if refused < 0 else refused

    def _decode_rows(self, codes: Bytes, scales: Bytes, exponents: Bytes, dtype: KvDtype, rows: Rows) -> None:
        addresses, counts = address_table(rows)
        head_dim = rows[0].shape[1]
        room = _working_memory(head_dim)
        kernels.decode(KINDS[dtype], addresses, counts, head_dim, _places(codes, scales, exponents, room, head_dim))


def _working_memory(head_dim: int) -> Bytes:
    room = line_aligned(sum(kernels.working_bytes(head_dim)))
    room[:] = 0
    return room


def _places(codes: Bytes, scales: Bytes, exponents: Bytes, room: Bytes, head_dim: int) -> npt.NDArray[np.uint64]:
    """Addresses as the kernels take them. Valid as long as the caller holds the arrays."""
    start = address_of(room)
    pieces = accumulate(kernels.working_bytes(head_dim)[:-1], initial=start)
    return np.array([address_of(codes), address_of(scales), address_of(exponents), *pieces], np.uint64)
