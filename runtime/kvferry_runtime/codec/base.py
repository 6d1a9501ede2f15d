"""What a codec must promise.

A codec turns the rows of one chunk into a payload and back. Values and scales travel in that one payload; the
payload's format is stated byte by byte in the codec's module and never changes for a given `wire_id` (a new format
gets a new id). Every implementation of a method writes the same bytes for the same input.

The caller owns all buffers. `encode` reads the source and writes only into `out`, `decode` reads the payload and
writes every element of the sink or raises; neither keeps a reference. Both release the GIL for the bulk of the work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kvferry_runtime.layout import KvDtype

Rows = Sequence[npt.NDArray[np.generic]]
"""The rows of one chunk as one or more C-contiguous 2-D arrays [rows_i, head_dim] that follow each other.

The element type is the unsigned integer of the dtype's width (bf16, fp16 -> uint16, fp32 -> uint32, uint8 -> uint8),
so that no value is ever reinterpreted by numpy. Paged caches give one array per block and part.
"""

Payload = npt.NDArray[np.uint8]


class Codec(ABC):
    """One method on one kind of memory."""

    name: ClassVar[str]
    wire_id: ClassVar[int]
    lossy: ClassVar[bool]

    @abstractmethod
    def supports(self, dtype: KvDtype, head_dim: int) -> str | None:
        """None if rows of this kind can be carried, else the reason, for the refusal before any byte moves."""

    @abstractmethod
    def max_wire_bytes(self, rows: int, head_dim: int, dtype: KvDtype) -> int:
        """Upper bound of `encode`'s result; exact for methods of fixed ratio."""

    @abstractmethod
    def encode(self, rows: Rows, dtype: KvDtype, out: Payload) -> int:
        """Write the payload to the front of `out` and return its length in bytes.

        Raises:
            NotEncodable: a value (NaN, infinity) that this method cannot carry; `out` is then undefined.
        """

    @abstractmethod
    def decode(self, payload: Payload, dtype: KvDtype, rows: Rows) -> None:
        """Fill `rows` from exactly `payload`.

        Raises:
            CorruptPayload: the length or the content does not fit; `rows` is then undefined.
        """
