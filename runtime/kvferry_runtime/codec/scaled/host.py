"""`ScaledRows` methods on host memory, through the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from kvferry_runtime.codec.base import ChunkShape, Rows
from kvferry_runtime.codec.host.addresses import address_of, address_table
from kvferry_runtime.codec.host.elements import KINDS
from kvferry_runtime.codec.scaled.format import Codes, ScaledRows, Scales
from kvferry_runtime.layout import KvDtype


class HostRows(ScaledRows):
    """Hands the addresses of the arrays to one kernel call; the caller holds the arrays meanwhile."""

    encode_kernel: ClassVar[Callable[..., int]]
    decode_kernel: ClassVar[Callable[..., bool]]

    def _encode_rows(self, rows: Rows, shape: ChunkShape, codes: Codes, scales: Scales) -> int | None:
        refused = self.encode_kernel(
            KINDS[shape.dtype], *address_table(rows), codes.shape[1], address_of(codes), scales
        )
        return None if refused < 0 else refused

    def _decode_rows(self, codes: Codes, scales: Scales, dtype: KvDtype, rows: Rows) -> bool:
        return self.decode_kernel(KINDS[dtype], *address_table(rows), codes.shape[1], address_of(codes), scales)
