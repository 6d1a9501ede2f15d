"""Methods `fp8-head` and `fp8-tensor` on host memory, compiled. The formats are those of `codec.fp8.format`."""

from __future__ import annotations

import numpy as np

from kvferry_runtime.codec.base import ChunkShape, Rows
from kvferry_runtime.codec.fp8 import host_scoped_kernels as kernels
from kvferry_runtime.codec.fp8.format import Fp8Head, Fp8Tensor
from kvferry_runtime.codec.fp8.host import HostFp8
from kvferry_runtime.codec.host.addresses import address_of, address_table
from kvferry_runtime.codec.host.elements import KINDS
from kvferry_runtime.codec.scaled.format import Codes, Scales
from kvferry_runtime.codec.scaled.scopes import largest_in_scope, spread_over_rows

_INFINITY = np.uint32(0x7F800000)


class HostFp8Scoped(HostFp8):
    """Reads a chunk twice, since the scale of its first row may depend on its last one."""

    def _encode_rows(self, rows: Rows, shape: ChunkShape, codes: Codes, scales: Scales) -> int | None:
        kind, (addresses, counts) = KINDS[shape.dtype], address_table(rows)
        of_rows = np.empty(shape.rows, np.uint32)
        kernels.magnitudes(kind, addresses, counts, shape.head_dim, of_rows)
        largest = largest_in_scope(of_rows, self.scale_scope, shape)
        if largest.max() >= _INFINITY:
            return int((of_rows >= _INFINITY).argmax())
        factors = np.empty_like(scales)
        kernels.scales_and_factors(largest, scales, factors)
        row_factors = spread_over_rows(factors, self.scale_scope, shape)
        kernels.quantise(kind, addresses, counts, shape.head_dim, address_of(codes), row_factors)
        return None


class HostFp8Head(HostFp8Scoped, Fp8Head):
    """A scale for each head."""


class HostFp8Tensor(HostFp8Scoped, Fp8Tensor):
    """A scale for each layer and part."""
