"""Method `k8v4` on host memory, compiled. The format is stated in `kvferry_runtime.codec.k8v4.format`."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.base import Payload, Rows
from kvferry_runtime.codec.host.addresses import address_of, address_table, line_aligned
from kvferry_runtime.codec.host.elements import KINDS
from kvferry_runtime.codec.int8.host import HostInt8
from kvferry_runtime.codec.k8v4 import host_kernels as kernels
from kvferry_runtime.codec.k8v4.format import K8V4, Values
from kvferry_runtime.layout import KvDtype


class HostK8V4(K8V4):
    """One kernel call for keys and one for values; the caller holds the arrays meanwhile."""

    def __init__(self) -> None:
        super().__init__(HostInt8())

    def _encode_values(self, rows: Rows, dtype: KvDtype, values: Values) -> int | None:
        addresses, counts = address_table(rows)
        head_dim = rows[0].shape[1]
        room = line_aligned(sum(kernels.working_bytes(head_dim)))
        refused: int = kernels.encode(KINDS[dtype], addresses, counts, head_dim, _places(values, room, head_dim))
        return None if refused < 0 else refused

    def _decode_values(self, values: Values, dtype: KvDtype, rows: Rows) -> None:
        addresses, counts = address_table(rows)
        head_dim = rows[0].shape[1]
        room = line_aligned(sum(kernels.working_bytes(head_dim)))
        kernels.decode(KINDS[dtype], addresses, counts, head_dim, _places(values, room, head_dim))


def _places(values: Values, room: Payload, head_dim: int) -> npt.NDArray[np.uint64]:
    """Addresses as the kernels take them. Valid as long as the caller holds the arrays."""
    pieces = accumulate(kernels.working_bytes(head_dim)[:-1], initial=address_of(room))
    return np.array([address_of(values.codes), address_of(values.steps), address_of(values.minima), *pieces], np.uint64)
