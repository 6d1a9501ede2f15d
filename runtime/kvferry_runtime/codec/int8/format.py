"""Method `int8`, wire id 1: codes are signed bytes, one fp32 scale for each row.

The payload is that of `kvferry_runtime.codec.scaled.format`: codes [rows, head_dim] first, then scales [rows]. A code
is an integer from -127 to 127 in two's complement and stands for itself; 0x80 (-128) never occurs. Both zeros
become 0. The error of an element is at most half of its row's scale, besides the rounding to the row's dtype.
"""

from __future__ import annotations

from typing import ClassVar

from kvferry_runtime.codec.scaled.format import ScaledRows

LARGEST_CODE = 127.0
SMALLEST_SCALE = 2.0**-125
"""Half of it, 2^-126, is the smallest normal fp32: subnormal elements round to code 0."""
VOID_CODE = 0x80


class Int8(ScaledRows):
    name: ClassVar[str] = "int8"
    wire_id: ClassVar[int] = 1
    largest_code: ClassVar[float] = LARGEST_CODE
    smallest_scale: ClassVar[float] = SMALLEST_SCALE
