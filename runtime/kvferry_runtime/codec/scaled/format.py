"""What `int8` and `fp8` share: one byte for each element and one fp32 scale for each row or group of rows.

Payload, little-endian, rows in the order of the chunk (layer, part, token, head):

=================  ==========================================
offset             content
=================  ==========================================
0                  codes, one byte each, [rows, head_dim]
rows * head_dim    scales, fp32, [scales]
=================  ==========================================

Which rows share a scale says the method's `scale_scope`; `kvferry_runtime.codec.scaled.scopes` says in which order
scales lie. A scale follows from the largest magnitude in its rows, in fp32, each operation rounded to nearest even:

* all elements are zero: scale 1;
* else scale = largest / `largest_code`, but at least `smallest_scale`, and an element's code is the element times
  `largest_code` / largest (at the bound: times 1 / `smallest_scale`), rounded to the nearest code, ties to even.

`smallest_scale` is a power of two, chosen so that subnormal fp32 elements always give code zero and no decoded value
is subnormal in fp32: the bytes are the same in a process that flushes subnormals to zero. Rows that small (largest
magnitude below about 1e-32) have an absolute instead of a relative error bound. fp16 rows never are.

A chunk with a NaN or an infinity cannot be carried. A decoded element is code times scale, rounded to nearest even in
the row's dtype; it is always finite.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.base import ChunkShape, Codec, Payload, Rows, ScaleScope
from kvferry_runtime.codec.rows import check_payload, check_rows, check_writeable
from kvferry_runtime.codec.scaled.scopes import scale_count, spread_over_rows
from kvferry_runtime.errors import CodecRefused, CorruptPayload, NotEncodable
from kvferry_runtime.layout import KvDtype, LayerShape

Codes = npt.NDArray[np.uint8]
"""[rows, head_dim]"""
Scales = npt.NDArray[np.float32]
"""[scales]"""

SCALE_BYTES = 4

_LARGEST_FINITE: Mapping[KvDtype, np.float32] = {
    KvDtype.BF16: np.float32((2 - 2**-7) * 2.0**127),
    KvDtype.FP16: np.float32((2 - 2**-10) * 2.0**15),
    KvDtype.FP32: np.float32((2 - 2**-23) * 2.0**127),
}


class ScaledRows(Codec):
    """Sizes, checks and the split of the payload; subclasses fill codes and scales."""

    lossy: ClassVar[bool] = True
    scale_scope: ClassVar[ScaleScope] = ScaleScope.TOKEN_AND_HEAD
    largest_code: ClassVar[float]
    """Value of the largest code."""
    smallest_scale: ClassVar[float]

    def supports(self, shape: LayerShape) -> str | None:
        """All float dtypes of every width; below 5 elements of 16 bits a row the payload is no smaller than raw."""
        return self._refusal(shape.dtype)

    def max_wire_bytes(self, shape: ChunkShape) -> int:
        """Exact. Not always below the raw size: then the chunk should go with `none`."""
        return shape.rows * shape.head_dim + scale_count(self.scale_scope, shape) * SCALE_BYTES

    def encode(self, rows: Rows, shape: ChunkShape, out: Payload) -> int:
        self._check_supported(shape.dtype)
        check_rows(rows, shape)
        length = self.max_wire_bytes(shape)
        check_payload(out, length)
        total, head_dim = shape.rows, shape.head_dim
        split = total * head_dim
        section = out[split:length].view("<f4")
        in_place = section.flags.aligned and section.dtype == np.float32
        scales = section if in_place else np.empty(section.size, np.float32)
        refused = self._encode_rows(rows, shape, out[:split].reshape(total, head_dim), scales)
        if refused is not None:
            raise NotEncodable(f"{self.name}: row {refused} of {total} holds a NaN or an infinity")
        if not in_place:
            section[:] = scales
        return length

    def decode(self, payload: Payload, shape: ChunkShape, rows: Rows) -> None:
        dtype = shape.dtype
        self._check_supported(dtype)
        check_rows(rows, shape)
        check_writeable(rows)
        check_payload(payload, 0)
        total, head_dim = shape.rows, shape.head_dim
        length = self.max_wire_bytes(shape)
        if payload.size != length:
            raise CorruptPayload(f"{self.name}: {total} rows of {head_dim} have {length} bytes, not {payload.size}")
        split = total * head_dim
        scales = payload[split:].copy().view("<f4").astype(np.float32, copy=False)
        largest_scale = _LARGEST_FINITE[dtype] / np.float32(self.largest_code)
        smallest, largest = scales.min(), scales.max()
        if not (np.float32(self.smallest_scale) <= smallest and largest <= largest_scale):
            raise CorruptPayload(
                f"{self.name}: scales from {smallest} to {largest}; {dtype.value} rows have {self.smallest_scale} to "
                f"{largest_scale}"
            )
        of_rows = spread_over_rows(scales, self.scale_scope, shape)
        if not self._decode_rows(payload[:split].reshape(total, head_dim), of_rows, dtype, rows):
            raise CorruptPayload(f"{self.name}: a code that stands for no value")

    def _check_supported(self, dtype: KvDtype) -> None:
        reason = self._refusal(dtype)
        if reason is not None:
            raise CodecRefused(reason)

    def _refusal(self, dtype: KvDtype) -> str | None:
        if dtype in _LARGEST_FINITE:
            return None
        return f"{self.name} carries bf16, fp16 and fp32, not {dtype.value}: use an exact method for it"

    @abstractmethod
    def _encode_rows(self, rows: Rows, shape: ChunkShape, codes: Codes, scales: Scales) -> int | None:
        """Fill `codes` and `scales`, or return the number of a row that holds a NaN or an infinity."""

    @abstractmethod
    def _decode_rows(self, codes: Codes, scales: Scales, dtype: KvDtype, rows: Rows) -> bool:
        """Fill `rows`, or return False if a code stands for no value. Scales [rows] are checked already."""
