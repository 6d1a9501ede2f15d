"""Methods `fp8`, `fp8-head` and `fp8-tensor`: codes are e4m3fn bytes, with one fp32 scale for a row, for all tokens of
a head, or for all tokens and heads of the chunk (at one layer and part).

The payload is that of `kvferry_runtime.codec.scaled.format`: codes [rows, head_dim] first, then scales.

============  =======  ==============  =====================
method        wire id  scale scope     scales
============  =======  ==============  =====================
`fp8`         2        TOKEN_AND_HEAD  [rows]
`fp8-head`    8        HEAD            [layers, parts, heads]
`fp8-tensor`  9        TENSOR          [layers, parts]
============  =======  ==============  =====================

A code is `seeeemmm`: sign, exponent with bias 7, mantissa.

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

from kvferry_runtime.codec.base import ScaleScope
from kvferry_runtime.codec.scaled.format import ScaledRows

LARGEST_CODE = 448.0
SMALLEST_SCALE = 2.0**-116
"""2^-10 of it, half of the smallest code, is the smallest normal fp32: subnormal elements round to code 0."""
VOID_MAGNITUDE = 0x7F


class Fp8(ScaledRows):
    name: ClassVar[str] = "fp8"
    wire_id: ClassVar[int] = 2
    largest_code: ClassVar[float] = LARGEST_CODE
    smallest_scale: ClassVar[float] = SMALLEST_SCALE


class Fp8Head(Fp8):
    name: ClassVar[str] = "fp8-head"
    wire_id: ClassVar[int] = 8
    scale_scope: ClassVar[ScaleScope] = ScaleScope.HEAD


class Fp8Tensor(Fp8):
    name: ClassVar[str] = "fp8-tensor"
    wire_id: ClassVar[int] = 9
    scale_scope: ClassVar[ScaleScope] = ScaleScope.TENSOR
