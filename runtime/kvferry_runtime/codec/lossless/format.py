"""Method `lossless`, wire id 3: bit for bit, with exponents in four bits.

Exponents of KV lie close together: of a few hundred neighbours nearly all are within 16 powers of two below the
largest. So a value is split into its sign with its mantissa, which are noise and travel as they are, and its exponent,
which becomes the distance from a base. The few exponents below the base travel beside them, in full.

**Groups.** The n values of a chunk, in its order, form groups of 256, the last one shorter. A bf16 word is
`seeeeeee emmmmmmm`. A group's base is its largest exponent (0 to 255) less 15, but at least 0; a value with an exponent
below the base is an escape. NaN payloads, infinities, subnormals and both zeros are words as any other. An fp32 value
is a bf16 word (its high half) and a low half, which travels as it is.

Payload, little-endian, g groups, e escapes:

=============  ===================================================================================================
bytes          content
=============  ===================================================================================================
2n             fp32 only: low halves of the values, [n]
n              sign and mantissa, `smmmmmmm`, [n]
ceil(n / 2)    codes, two a byte, group after group: byte i of a group of m values holds the code of its value i in
               the low half and of its value i + ceil(m / 2), or 0 if there is none, in the high half
g              bases of the groups, 0 to 240
g              numbers of escapes of the groups, 0 to 255
2e             escapes, group after group, in the order of values: position within the group, exponent
=============  ===================================================================================================

A code is the exponent less the base, modulo 16: for an escape, too, whose exponent then replaces what the code says.
For bf16 that is 0.754 of the raw size plus 0.01 for each percent of escapes, for fp32 0.877.

A chunk that this would not make smaller is its raw bytes instead, as `none` writes them: a payload of the raw size is
raw, every other is split. fp16 (five exponent bits, of which one could be saved) and uint8 always travel raw.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from kvferry_runtime.codec.base import ChunkShape, Codec, Payload, Rows
from kvferry_runtime.codec.none.format import NoneCodec
from kvferry_runtime.codec.rows import check_payload, check_rows, check_writeable
from kvferry_runtime.errors import CorruptPayload
from kvferry_runtime.layout import KvDtype, LayerShape

GROUP = 256
WINDOW = 16
"""Exponents that have a code of their own."""
LARGEST_BASE = 256 - WINDOW
ESCAPE_BYTES = 2

_LOW_HALF_BYTES = {KvDtype.BF16: 0, KvDtype.FP32: 2}
"""For each value of the dtypes that can be split."""


@dataclass(frozen=True, slots=True)
class Sections:
    """Where the parts of a split payload begin, in bytes; low halves, if any, begin at 0."""

    signs: int
    codes: int
    bases: int
    counts: int
    escapes: int

    @classmethod
    def of(cls, shape: ChunkShape) -> Sections:
        """Only for dtypes that can be split."""
        values = shape.rows * shape.head_dim
        groups = -(-values // GROUP)
        signs = values * _LOW_HALF_BYTES[shape.dtype]
        codes = signs + values
        bases = codes + -(-values // 2)
        return cls(signs, codes, bases, bases + groups, bases + 2 * groups)


class Lossless(Codec):
    """Sizes, checks and the way back to raw bytes; subclasses split and join values."""

    name: ClassVar[str] = "lossless"
    wire_id: ClassVar[int] = 3
    lossy: ClassVar[bool] = False

    def __init__(self) -> None:
        self._raw = NoneCodec()

    def supports(self, shape: LayerShape) -> str | None:
        """Everything can be carried; fp16 and uint8 never get smaller."""
        return None

    def max_wire_bytes(self, shape: ChunkShape) -> int:
        return shape.raw_bytes

    def encode(self, rows: Rows, shape: ChunkShape, out: Payload) -> int:
        """Never raises NotEncodable."""
        if shape.dtype in _LOW_HALF_BYTES:
            check_rows(rows, shape)
            check_payload(out, shape.raw_bytes)
            sections = Sections.of(shape)
            room = (shape.raw_bytes - 1 - sections.escapes) // ESCAPE_BYTES
            escapes = self._split(rows, shape, out, sections, room) if room >= 0 else None
            if escapes is not None:
                return sections.escapes + escapes * ESCAPE_BYTES
        return self._raw.encode(rows, shape, out)

    def decode(self, payload: Payload, shape: ChunkShape, rows: Rows) -> None:
        check_rows(rows, shape)
        check_writeable(rows)
        check_payload(payload, 0)
        if payload.size == shape.raw_bytes:
            self._raw.decode(payload, shape, rows)
            return
        if shape.dtype not in _LOW_HALF_BYTES:
            raise CorruptPayload(f"lossless: {shape} has {shape.raw_bytes} bytes, not {payload.size}")
        sections = Sections.of(shape)
        rest = payload.size - sections.escapes
        if rest < 0 or rest % ESCAPE_BYTES or payload.size > shape.raw_bytes:
            raise CorruptPayload(
                f"lossless: {shape} has {shape.raw_bytes} bytes, or {sections.escapes} and {ESCAPE_BYTES} for each "
                f"escape if that is less, not {payload.size}"
            )
        if not self._join(payload, shape, sections, rest // ESCAPE_BYTES, rows):
            raise CorruptPayload(
                f"lossless: {shape} with {rest // ESCAPE_BYTES} escapes: a base above {LARGEST_BASE}, an escape "
                f"outside of its group, or groups that have another number of escapes in all"
            )

    @abstractmethod
    def _split(self, rows: Rows, shape: ChunkShape, out: Payload, sections: Sections, room: int) -> int | None:
        """Fill the sections of `out`; the number of escapes, or None if there are more than `room`."""

    @abstractmethod
    def _join(self, payload: Payload, shape: ChunkShape, sections: Sections, escapes: int, rows: Rows) -> bool:
        """Fill `rows` with `escapes` escapes, or return False, with nothing written, if a section is wrong."""
