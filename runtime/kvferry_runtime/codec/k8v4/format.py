"""Method `k8v4`, wire id 4: keys as in `int8`, values in four bits with a step and a minimum for 32 of them.

Errors of keys move attention, errors of values are averaged by it: keys get more bits. Only for layers that have both
(two parts), not for latent caches.

Payload, little-endian; r rows of keys (part 0) and as many of values (part 1), each in the order of the chunk (layer,
token, head); `width` = ceil(head_dim / 2), `groups` = ceil(head_dim / 32):

====================  ============================================================================
bytes                 content
====================  ============================================================================
r * (head_dim + 4)    keys: the payload of `kvferry_runtime.codec.int8.format`, codes first, then scales
r * width             codes of values, two a byte, [r, width]
r * groups * 2        steps of values, bf16, [r, groups]
r * groups * 2        minima of values, bf16, [r, groups]
====================  ============================================================================

For head_dim 128 in 16 bits that is 0.414 of the raw size.

Byte i of a row of values has the code (0 to 15) of element i in its low half and of element i + width in its high half;
with an odd head_dim the high half of the last byte is 0. Group g has elements 32 g to 32 g + 31, the last one of a row
may be shorter. All in fp32, each operation rounded to nearest even, elements below 2^-126 (subnormals, both zeros)
taken as 0:

* minimum = the smallest element, rounded down to bf16 (exact for bf16 rows);
* step = (largest element - minimum) / 15, rounded to the nearest bf16, ties to even, but at least 2^-100;
* code = (element - minimum) * (1 / step), rounded to the nearest integer, ties to even: never above 15.

A decoded element is minimum + code * step, rounded to nearest even in the row's dtype, in fp16 at most 65504; it is
always finite. Its error is at most 0.51 steps, besides the rounding to the dtype; equal bf16 elements of a group come
back as they were. The bound of the step keeps subnormals out of all results that matter: the bytes are the same in a
process that flushes them to zero.

A chunk with a NaN or an infinity, or with a value of 2^126 (8.5e37) and more, cannot be carried: differences of such
values could overflow.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.base import ChunkShape, Codec, Payload, Rows, ScaleScope
from kvferry_runtime.codec.int8.format import Int8
from kvferry_runtime.codec.k8v4.parts import part_rows
from kvferry_runtime.codec.rows import check_payload, check_rows, check_writeable
from kvferry_runtime.errors import CodecRefused, CorruptPayload, NotEncodable
from kvferry_runtime.layout import KvDtype, LayerShape

GROUP = 32
LARGEST_CODE = 15.0
SMALLEST_STEP = 2.0**-100
VALUE_LIMIT = 2.0**126

_HALF_BYTES = 2

# bits of bf16; those of positive numbers have the order of the numbers
_SMALLEST_STEP_BITS = (127 - 100) << 7
_LARGEST_STEP_BITS = 0x7D09  # 2^127 / 15, between the two ends of what values may be
_SMALLEST_NORMAL_BITS = 1 << 7
_VALUE_LIMIT_BITS = (127 + 126) << 7

Halves = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Values:
    """What stands for rows of values: codes [rows, width], steps and minima as bits of bf16 [rows, groups]."""

    codes: Payload
    steps: Halves
    minima: Halves


class K8V4(Codec):
    """Sizes, checks and the sections of the payload; subclasses turn rows of values into codes and back."""

    name: ClassVar[str] = "k8v4"
    wire_id: ClassVar[int] = 4
    lossy: ClassVar[bool] = True
    scale_scope: ClassVar[ScaleScope] = ScaleScope.TOKEN_AND_HEAD

    def __init__(self, keys: Int8) -> None:
        self._keys = keys

    def supports(self, shape: LayerShape) -> str | None:
        """All float dtypes of every width."""
        return self._refusal(shape.parts, shape.dtype)

    def max_wire_bytes(self, shape: ChunkShape) -> int:
        """Exact. Not always below the raw size: then the chunk should go with `none`."""
        return self._keys.max_wire_bytes(_of_keys(shape)) + sum(_value_bytes(shape))

    def encode(self, rows: Rows, shape: ChunkShape, out: Payload) -> int:
        self._check_supported(shape)
        check_rows(rows, shape)
        length = self.max_wire_bytes(shape)
        check_payload(out, length)
        keys, values = part_rows(rows, shape)
        behind_keys = self._keys.encode(keys, _of_keys(shape), out)
        codes, *behind = _sections(out[behind_keys:], shape)
        count = shape.rows // 2
        steps, minima = np.empty((2, count, -(-shape.head_dim // GROUP)), np.uint16)
        refused = self._encode_values(values, shape.dtype, Values(codes.reshape(count, -1), steps, minima))
        if refused is not None:
            raise NotEncodable(
                f"k8v4: row {refused} of {count} of values holds a NaN, an infinity or a magnitude of 2^126 and more"
            )
        for section, halves in zip(behind, (steps, minima), strict=True):
            section[:] = halves.astype("<u2", copy=False).reshape(-1).view(np.uint8)
        return length

    def decode(self, payload: Payload, shape: ChunkShape, rows: Rows) -> None:
        self._check_supported(shape)
        check_rows(rows, shape)
        check_writeable(rows)
        check_payload(payload, 0)
        length = self.max_wire_bytes(shape)
        if payload.size != length:
            raise CorruptPayload(f"k8v4: {shape} has {length} bytes, not {payload.size}")
        keys, values = part_rows(rows, shape)
        behind_keys = self._keys.max_wire_bytes(_of_keys(shape))
        codes, *behind = _sections(payload[behind_keys:], shape)
        count = shape.rows // 2
        # copies, as sections of an odd width are not aligned
        steps, minima = (
            section.copy().view("<u2").astype(np.uint16, copy=False).reshape(count, -1) for section in behind
        )
        _check_steps_and_minima(steps, minima)
        try:
            self._keys.decode(payload[:behind_keys], _of_keys(shape), keys)
        except CorruptPayload as error:
            raise CorruptPayload(f"k8v4: keys: {error}") from error
        self._decode_values(Values(codes.reshape(count, -1), steps, minima), shape.dtype, values)

    def _check_supported(self, shape: ChunkShape) -> None:
        reason = self._refusal(shape.parts, shape.dtype)
        if reason is not None:
            raise CodecRefused(reason)

    def _refusal(self, parts: int, dtype: KvDtype) -> str | None:
        if dtype is KvDtype.UINT8:
            return f"k8v4 carries bf16, fp16 and fp32, not {dtype.value}: use an exact method for it"
        if parts != 2:
            return (
                f"k8v4 treats keys and values differently, a cache of {parts} part has no such halves: use int8 for it"
            )
        return None

    @abstractmethod
    def _encode_values(self, rows: Rows, dtype: KvDtype, values: Values) -> int | None:
        """Fill `values`, or return the number of a row that cannot be carried."""

    @abstractmethod
    def _decode_values(self, values: Values, dtype: KvDtype, rows: Rows) -> None:
        """Fill `rows`. Steps and minima are checked already, and every code stands for a value."""


def _of_keys(shape: ChunkShape) -> ChunkShape:
    return replace(shape, parts=1)


def _value_bytes(shape: ChunkShape) -> tuple[int, int, int]:
    """Of codes, steps and minima."""
    count = shape.rows // 2
    halves = count * -(-shape.head_dim // GROUP) * _HALF_BYTES
    return count * -(-shape.head_dim // 2), halves, halves


def _sections(behind_keys: Payload, shape: ChunkShape) -> tuple[Payload, Payload, Payload]:
    codes, steps, minima = _value_bytes(shape)
    return (
        behind_keys[:codes],
        behind_keys[codes : codes + steps],
        behind_keys[codes + steps : codes + steps + minima],
    )


def _check_steps_and_minima(steps: Halves, minima: Halves) -> None:
    """Raises CorruptPayload if one is none that an encoder writes: so no decoded value is other than finite."""
    if steps.min() < _SMALLEST_STEP_BITS or steps.max() > _LARGEST_STEP_BITS:
        raise CorruptPayload(
            f"k8v4: steps from 0x{steps.min():04x} to 0x{steps.max():04x} (bf16); they are 2^-100 to 2^127 / 15"
        )
    magnitudes = minima & np.uint16(0x7FFF)
    # less one, a zero becomes the largest of all: what is still small is subnormal
    if magnitudes.max() > _VALUE_LIMIT_BITS or (magnitudes - np.uint16(1)).min() < _SMALLEST_NORMAL_BITS - 1:
        raise CorruptPayload("k8v4: a minimum is not finite, subnormal, or beyond 2^126")
