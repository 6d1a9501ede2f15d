"""Method `fp8`, wire id 2: codes are e4m3fn bytes, one fp32 scale for each row.

The payload is that of `kvferry_runtime.codec.scaled_rows`: codes [rows, head_dim] first, then scales [rows]. A code
is `seeeemmm`: sign, exponent with bias 7, mantissa.

========  ==========================================
eeee      value of the code, but for its sign
========  ==========================================
0         mmm / 8 * 2^-6
1 to 15   (1 + mmm / 8) * 2^(eeee - 7), at most 448
========  ==========================================

0x7f and 0xff are NaN in e4m3fn and never occur: a magnitude above 448 saturates. Zeros keep their sign. An element of
at least 2^-6 scale has a relative error of at most 2^-4, a smaller one an absolute error of at most 2^-10 scale.
"""

from __future__ import annotations

from typing import ClassVar

from kvferry_runtime.codec.scaled_rows import ScaledRows

LARGEST_CODE = 448.0
SMALLEST_SCALE = 2.0**-116
"""2^-10 of it, half of the smallest code, is the smallest normal fp32: subnormal elements round to code 0."""
VOID_MAGNITUDE = 0x7F


class Fp8(ScaledRows):
    name: ClassVar[str] = "fp8"
    wire_id: ClassVar[int] = 2
    largest_code: ClassVar[float] = LARGEST_CODE
    smallest_scale: ClassVar[float] = SMALLEST_SCALE
