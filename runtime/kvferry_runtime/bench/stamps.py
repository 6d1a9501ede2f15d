"""A codec that leaves the payload alone, to measure slot to slot: what the two sidecars can do by themselves."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kvferry_contract.config import Integrity
from kvferry_runtime.agent.self_check import SelfCheck
from kvferry_runtime.agent.slot_codec import SlotCodec
from kvferry_runtime.codec.base import ChunkShape, Codec, Payload, Rows
from kvferry_runtime.errors import CorruptPayload
from kvferry_runtime.layout import LayerShape

_STAMP = np.frombuffer(b"kvferry\0", np.uint8)


class StampCodec(Codec):
    """Writes eight bytes at both ends of the payload and checks them; what lies between stays as it was."""

    name: ClassVar[str] = "none"
    wire_id: ClassVar[int] = 0
    lossy: ClassVar[bool] = False

    def supports(self, shape: LayerShape) -> str | None:
        return None

    def max_wire_bytes(self, shape: ChunkShape) -> int:
        return shape.raw_bytes

    def encode(self, rows: Rows, shape: ChunkShape, out: Payload) -> int:
        length = shape.raw_bytes
        out[: len(_STAMP)] = out[length - len(_STAMP) : length] = _STAMP
        return length

    def decode(self, payload: Payload, shape: ChunkShape, rows: Rows) -> None:
        """Raises CorruptPayload: a stamp is missing. Takes the stamps away, for the next chunk in this slot."""
        for place in (payload[: len(_STAMP)], payload[-len(_STAMP) :]):
            if not np.array_equal(place, _STAMP):
                raise CorruptPayload("a chunk came without its stamps")
            place[:] = 0


def stamping() -> SlotCodec:
    codec = StampCodec()
    return SlotCodec(
        method=codec, exact=codec, codecs={codec.name: codec}, integrity=Integrity.HEADER, checks=SelfCheck(1.0)
    )
