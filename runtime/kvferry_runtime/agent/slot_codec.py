"""One chunk from an engine's memory into a slot of the ring, and back: one pass of the codec, one of the digest.

The codec writes straight into the slot and reads straight out of it; the digest follows (or goes first) while the
chunk is in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from kvferry_contract.config import Integrity
from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.agent.chunk_header import checked_payload, chunk_header, payload_digest
from kvferry_runtime.agent.gather import chunk_rows
from kvferry_runtime.agent.method_speed import measure
from kvferry_runtime.agent.self_check import SelfCheck
from kvferry_runtime.auto.speeds import MethodSpeed
from kvferry_runtime.codec import registry
from kvferry_runtime.codec.base import ChunkShape, Codec, Payload, Rows
from kvferry_runtime.errors import NotEncodable
from kvferry_runtime.layout import KvLayout, LayerShape
from kvferry_runtime.plan import Chunk
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.messages import Check
from kvferry_runtime.wire.data import HEADER_BYTES, DataHeader


@dataclass(frozen=True, slots=True)
class SlotCodec:
    """method: codec for chunks that need not be exact. exact: codec for all others. codecs: for decoding, by name.

    checks: looks at what lossy methods do to the values.
    """

    method: Codec
    exact: Codec
    codecs: Mapping[str, Codec]
    integrity: Integrity
    checks: SelfCheck

    @property
    def busy(self) -> bool:
        """Never between two calls: each ends its copy."""
        return False

    def attached(self, ring: RingMemory) -> None:
        """Host memory needs no preparation."""

    def fill(
        self, ring: RingMemory, slot: int, layout: KvLayout, memory: KvMemory, transfer_id: str, generation: int,
        chunk: Chunk, method: str,
    ) -> DataHeader:  # fmt: skip
        """Write payload and header into the slot.

        method: name of the codec, where the chunk and the checks so far allow it. Empty: the usual one.

        Raises:
            LayoutError: the engine's memory is not as announced; the slot's content is undefined.
        """
        shape = layout.shape(chunk.layer)
        layers = range(chunk.layer, chunk.layer + chunk.layer_count)
        rows = chunk_rows(memory, shape, layers, chunk.token_start, chunk.token_stop)
        payload = np.frombuffer(ring.slot_payload(slot), np.uint8)
        extent = ChunkShape.of(shape, chunk.layer_count, chunk.token_stop - chunk.token_start)
        codec = self.exact if chunk.exact else self.codecs[method] if method else self.method
        if not self.checks.allows(codec.name, layers):
            codec = self.exact
        codec, wire_bytes = self._encode(rows, extent, codec, payload)
        due = codec.lossy and self.checks.due(slot)
        if due and not self.checks.passes(codec, rows, payload[:wire_bytes], extent, layers, slot):
            codec, wire_bytes = self._encode(rows, extent, self.exact, payload)
        digest = payload_digest(payload[:wire_bytes], self.integrity)
        header = chunk_header(transfer_id, generation, chunk, shape, codec, wire_bytes, digest)
        ring.slot_header(slot)[:] = header.pack()
        return header

    def take_check(self, slot: int) -> Check | None:
        """What decoding the chunk that was last written into this slot gave, once; None if it was not decoded."""
        return self.checks.take(slot)

    def speed(self, method: str, shape: LayerShape) -> MethodSpeed:
        """Of this method on one layer's values."""
        return measure(self.codecs[method], shape, lambda payload: payload_digest(payload, self.integrity))

    def read(self, ring: RingMemory, slot: int, header: DataHeader, shape: LayerShape, memory: KvMemory) -> None:
        """Check the payload's digest, then write its rows.

        Raises:
            CorruptPayload: the digest or the content does not fit. With a wrong digest nothing was written.
            CodecError: it was encoded by a method that we do not have; nothing was written.
            LayoutError: the engine's memory is not as announced, or the lengths exceed the slot.
        """
        codec = registry.by_wire_id(self.codecs, header.codec)
        payload = checked_payload(ring, slot, header, self.integrity)
        layers = range(header.layer, header.layer + header.layer_count)
        rows = chunk_rows(memory, shape, layers, header.token_start, header.token_stop)
        codec.decode(payload, ChunkShape.of(shape, len(layers), header.token_stop - header.token_start), rows)

    def _encode(self, rows: Rows, shape: ChunkShape, method: Codec, payload: Payload) -> tuple[Codec, int]:
        """Use the method where it can be used and makes the chunk no larger, else the exact codec."""
        if method is not self.exact and _pays(method, shape, len(payload)):
            with suppress(NotEncodable):
                return method, method.encode(rows, shape, payload)
        return self.exact, self.exact.encode(rows, shape, payload)


def _pays(method: Codec, shape: ChunkShape, room: int) -> bool:
    """Whether every payload of the method fits into so many bytes, and a lossy one is smaller than the rows.

    An exact one that gains nothing holds the rows as they are: there is no need to copy them once more.
    """
    longest = method.max_wire_bytes(shape)
    largest = shape.raw_bytes - 1 if method.lossy else shape.raw_bytes
    return longest <= min(room, largest)


def slot_header(ring: RingMemory, slot: int) -> DataHeader:
    """Raises FrameError: what lies in the slot is no chunk of ours."""
    return DataHeader.unpack(ring.slot_header(slot)[:HEADER_BYTES])
