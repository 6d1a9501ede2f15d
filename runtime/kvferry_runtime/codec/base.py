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
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kvferry_runtime.layout import KvDtype, LayerShape

Rows = Sequence[npt.NDArray[np.generic]]
"""The rows of one chunk as one or more C-contiguous 2-D arrays [rows_i, head_dim] that follow each other.

They lie in the order of `ChunkShape`: layer, part, token, head.

The element type is the unsigned integer of the dtype's width (bf16, fp16 -> uint16, fp32 -> uint32, uint8 -> uint8),
so that no value is ever reinterpreted by numpy. Paged caches give one array per block and part, as `PagedRows` do.
"""

Payload = npt.NDArray[np.uint8]


class ScaleScope(IntEnum):
    """Which values share a scale. The numbers are those of the DATA header."""

    NONE = 0
    TOKEN_AND_HEAD = 1
    """One row."""
    HEAD = 2
    """All tokens of the chunk at one layer, part and head."""
    TENSOR = 3
    """All tokens and heads of the chunk at one layer and part."""
    GROUP = 4
    """A few neighbours within a row."""


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """What one chunk holds. Rows lie in the order [layer][part][token][head], each of `head_dim` values."""

    layers: int
    parts: int
    tokens: int
    heads: int
    head_dim: int
    dtype: KvDtype

    @classmethod
    def of(cls, shape: LayerShape, layers: int, tokens: int) -> ChunkShape:
        """Of so many tokens of so many layers of this kind."""
        return cls(layers, shape.parts, tokens, shape.heads, shape.head_dim, shape.dtype)

    @property
    def rows(self) -> int:
        return self.layers * self.parts * self.tokens * self.heads

    @property
    def raw_bytes(self) -> int:
        return self.rows * self.head_dim * self.dtype.itemsize


class Codec(ABC):
    """One method on one kind of memory."""

    name: ClassVar[str]
    wire_id: ClassVar[int]
    lossy: ClassVar[bool]
    scale_scope: ClassVar[ScaleScope] = ScaleScope.NONE

    @abstractmethod
    def supports(self, shape: LayerShape) -> str | None:
        """None if layers of this kind can be carried, else the reason, for the refusal before any byte moves."""

    @abstractmethod
    def max_wire_bytes(self, shape: ChunkShape) -> int:
        """Upper bound of `encode`'s result; exact for methods of fixed ratio."""

    @abstractmethod
    def encode(self, rows: Rows, shape: ChunkShape, out: Payload) -> int:
        """Write the payload to the front of `out` and return its length in bytes.

        Raises:
            LayoutError: the arrays are no rows of `shape`, or `out` is too small.
            CodecRefused: layers of this kind cannot be carried.
            NotEncodable: a value (NaN, infinity) that this method cannot carry; `out` is then undefined.
        """

    @abstractmethod
    def decode(self, payload: Payload, shape: ChunkShape, rows: Rows) -> None:
        """Fill `rows` from exactly `payload`.

        Raises:
            LayoutError: the arrays are no writeable rows of `shape`.
            CodecRefused: layers of this kind cannot be carried.
            CorruptPayload: the length or the content does not fit; `rows` is then undefined.
        """
