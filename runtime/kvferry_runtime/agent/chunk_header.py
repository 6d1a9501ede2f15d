"""What goes in front of a chunk's payload, and the payload's digest."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import xxhash

from kvferry_contract.config import Integrity
from kvferry_runtime.codec.base import Payload, ScaleScope
from kvferry_runtime.errors import CorruptPayload, LayoutError
from kvferry_runtime.layout import LayerShape
from kvferry_runtime.plan import Chunk
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.wire.data import DataHeader


class _Codec(Protocol):
    """What a header says of the codec, whatever memory it works on."""

    @property
    def wire_id(self) -> int: ...
    @property
    def scale_scope(self) -> ScaleScope: ...


def chunk_header(
    transfer_id: str, generation: int, chunk: Chunk, shape: LayerShape, codec: _Codec, wire_bytes: int, digest: int
) -> DataHeader:
    """shape: of each of the chunk's layers."""
    return DataHeader(
        transfer_id=transfer_id,
        generation=generation,
        sequence=chunk.sequence,
        layer=chunk.layer,
        layer_count=chunk.layer_count,
        parts=shape.parts,
        codec=codec.wire_id,
        token_start=chunk.token_start,
        token_stop=chunk.token_stop,
        head_stop=shape.heads,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        scale_scope=codec.scale_scope,
        raw_bytes=chunk.raw_bytes,
        wire_bytes=wire_bytes,
        digest=digest,
    )


def checked_payload(ring: RingMemory, slot: int, header: DataHeader, integrity: Integrity) -> Payload:
    """What lies in this slot behind the header.

    Raises:
        CorruptPayload: the digest does not fit.
        LayoutError: the length exceeds the slot.
    """
    if header.wire_bytes > ring.chunk_bytes:
        raise LayoutError(f"chunk of {header.wire_bytes} bytes in a slot of {ring.chunk_bytes}")
    payload = np.frombuffer(ring.slot_payload(slot), np.uint8)[: header.wire_bytes]
    if payload_digest(payload, integrity) != header.digest:
        raise CorruptPayload(f"digest of chunk {header.sequence} does not fit")
    return payload


def payload_digest(payload: Payload, integrity: Integrity) -> int:
    """0 where the header's own checksum is all that was asked for."""
    if integrity is Integrity.HEADER:
        return 0
    return xxhash.xxh3_64_intdigest(payload.data)
