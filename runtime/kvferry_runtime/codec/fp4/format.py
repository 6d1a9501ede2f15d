"""Method `fp4`, wire id 5: codes are e2m1, one e4m3 scale for each group of 16 elements, one exponent for each row.

Payload, little-endian, rows in the order of the chunk (layer, part, token, head); `width` = ceil(head_dim / 2),
`groups` = ceil(head_dim / 16):

=========================  ==========================================
offset                     content
=========================  ==========================================
0                          codes, two in a byte, [rows, width]
rows * width               scales, one byte each, [rows, groups]
rows * (width + groups)    exponents, one byte each, [rows]
=========================  ==========================================

Byte i of a row's codes has element i in its low half and element i + width in its high half; with an odd head_dim the
high half of the last byte is zero. Group g has elements 16 g to 16 g + 15, the last one of a row may be shorter. For
head_dim 128 that is 73 bytes for 256.

A code is `seem`: sign, exponent, mantissa. Codes 0 to 7 stand for 0, 0.5, 1, 1.5, 2, 3, 4, 6. A scale is the e4m3fn
byte (see `kvferry_runtime.codec.fp8.format`) of a positive number, 0x01 to 0x7e: never zero, never NaN. An exponent
byte b stands for 2^(b - 137), 22 <= b <= 254 (142 in fp16 rows). An element is code * scale * 2^(b - 137), rounded to
nearest even in the row's dtype (exact in bf16, fp32 and normal fp16: a product has 6 bits); -0 comes back as 0.

The encoder, in fp32, each operation rounded to nearest even:

* b = exponent field of the fp32 with the row's largest magnitude, but at least 22;
* scale = largest magnitude of the group * 2^(137 - b) * fp32(1 / 6), multiplied in this order, rounded to the nearest
  e4m3, ties to even; at least 0x01, and at most 0x7a in rows of the largest b, which 6 times the scale would overflow;
* code = element * (1 / (scale * 2^(b - 137))), magnitudes above 6 as 6, rounded to the nearest code, ties to even
  (0.25 -> 0, 0.75 -> 2, 1.25 -> 2, 1.75 -> 4, 2.5 -> 4, 3.5 -> 6, 5 -> 6), with the element's own sign.

So the largest scale of a row is between 170 and 352, and e4m3 reaches 2^17 below it: rows may differ by any factor,
groups of a row by 10^5 before the small ones lose precision. An element's error is at most 0.18 times the largest
magnitude of its group plus 2^-17 times that of its row. The bounds of b keep subnormal fp32 out of every step but the
elements themselves, which always give code 0: the bytes are the same in a process that flushes subnormals to zero.
A row with a NaN or an infinity cannot be carried; whatever is decoded is finite.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.base import ChunkShape, Codec, Payload, Rows, ScaleScope
from kvferry_runtime.codec.rows import check_payload, check_rows, check_writeable
from kvferry_runtime.errors import CodecRefused, CorruptPayload, NotEncodable
from kvferry_runtime.layout import KvDtype, LayerShape

GROUP = 16
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the codes 0 to 7 stand for."""
SMALLEST_SCALE, LARGEST_SCALE, LARGEST_SCALE_AT_TOP = 0x01, 0x7E, 0x7A
SMALLEST_EXPONENT = 22
"""0.25 * 2^-9 * 2^(22 - 137) is the smallest normal fp32: subnormal elements round to code 0."""
LARGEST_EXPONENT = {KvDtype.BF16: 254, KvDtype.FP16: 142, KvDtype.FP32: 254}
EXPONENT_BIAS = 137

Bytes = npt.NDArray[np.uint8]
"""codes [rows, width], scales [rows, groups], exponents [rows]"""


class Fp4(Codec):
    """Sizes, checks and the split of the payload; subclasses fill codes, scales and exponents."""

    name: ClassVar[str] = "fp4"
    wire_id: ClassVar[int] = 5
    lossy: ClassVar[bool] = True
    scale_scope: ClassVar[ScaleScope] = ScaleScope.GROUP

    def supports(self, shape: LayerShape) -> str | None:
        """All float dtypes of every width; a row of one element is no smaller than raw."""
        return self._refusal(shape.dtype)

    def max_wire_bytes(self, shape: ChunkShape) -> int:
        """Exact. Not always below the raw size: then the chunk should go with `none`."""
        return shape.rows * (_width(shape) + _groups(shape) + 1)

    def encode(self, rows: Rows, shape: ChunkShape, out: Payload) -> int:
        self._check_supported(shape.dtype)
        check_rows(rows, shape)
        length = self.max_wire_bytes(shape)
        check_payload(out, length)
        refused = self._encode_rows(rows, shape, *_split(out[:length], shape))
        if refused is not None:
            raise NotEncodable(f"{self.name}: row {refused} of {shape.rows} holds a NaN or an infinity")
        return length

    def decode(self, payload: Payload, shape: ChunkShape, rows: Rows) -> None:
        self._check_supported(shape.dtype)
        check_rows(rows, shape)
        check_writeable(rows)
        check_payload(payload, 0)
        length = self.max_wire_bytes(shape)
        if payload.size != length:
            raise CorruptPayload(
                f"{self.name}: {shape.rows} rows of {shape.head_dim} have {length} bytes, not {payload.size}"
            )
        codes, scales, exponents = _split(payload, shape)
        self._check_exponents(exponents, shape.dtype)
        self._check_scales(scales, exponents, shape.dtype)
        if shape.head_dim % 2 and (codes[:, -1] >> 4).any():
            raise CorruptPayload(f"{self.name}: a code beyond the {shape.head_dim} elements of a row")
        self._decode_rows(codes, scales, exponents, shape.dtype, rows)

    def _check_exponents(self, exponents: Bytes, dtype: KvDtype) -> None:
        smallest, largest, limit = exponents.min(), exponents.max(), LARGEST_EXPONENT[dtype]
        if smallest < SMALLEST_EXPONENT or largest > limit:
            raise CorruptPayload(
                f"{self.name}: exponents from {smallest} to {largest}; {dtype.value} rows have {SMALLEST_EXPONENT} to "
                f"{limit}"
            )

    def _check_scales(self, scales: Bytes, exponents: Bytes, dtype: KvDtype) -> None:
        smallest, largest = scales.min(), scales.max()
        if smallest < SMALLEST_SCALE or largest > LARGEST_SCALE:
            raise CorruptPayload(
                f"{self.name}: scales from {smallest:#04x} to {largest:#04x}; allowed are {SMALLEST_SCALE:#04x} to "
                f"{LARGEST_SCALE:#04x}"
            )
        at_top = exponents == LARGEST_EXPONENT[dtype]
        if at_top.any() and (largest := scales[at_top].max()) > LARGEST_SCALE_AT_TOP:
            raise CorruptPayload(
                f"{self.name}: scale {largest:#04x} in a row of exponent {LARGEST_EXPONENT[dtype]}; at most "
                f"{LARGEST_SCALE_AT_TOP:#04x} stays in the range of {dtype.value}"
            )

    def _check_supported(self, dtype: KvDtype) -> None:
        reason = self._refusal(dtype)
        if reason is not None:
            raise CodecRefused(reason)

    def _refusal(self, dtype: KvDtype) -> str | None:
        if dtype in LARGEST_EXPONENT:
            return None
        return f"{self.name} carries bf16, fp16 and fp32, not {dtype.value}: use an exact method for it"

    @abstractmethod
    def _encode_rows(self, rows: Rows, shape: ChunkShape, codes: Bytes, scales: Bytes, exponents: Bytes) -> int | None:
        """Fill the three parts, or return the number of a row that holds a NaN or an infinity."""

    @abstractmethod
    def _decode_rows(self, codes: Bytes, scales: Bytes, exponents: Bytes, dtype: KvDtype, rows: Rows) -> None:
        """Fill `rows`; the three parts are checked already."""


def _width(shape: ChunkShape) -> int:
    """Bytes of a row's codes."""
    return -(-shape.head_dim // 2)


def _groups(shape: ChunkShape) -> int:
    return -(-shape.head_dim // GROUP)


def _split(payload: Payload, shape: ChunkShape) -> tuple[Bytes, Bytes, Bytes]:
    """Codes, scales and exponents as views."""
    width, groups = _width(shape), _groups(shape)
    scales, exponents = shape.rows * width, shape.rows * (width + groups)
    return (
        payload[:scales].reshape(shape.rows, width),
        payload[scales:exponents].reshape(shape.rows, groups),
        payload[exponents:],
    )
