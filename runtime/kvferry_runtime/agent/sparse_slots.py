"""The slots of an agent whose method leaves tokens out; prompts so short that all are kept go as they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.agent.chunk_header import chunk_header, payload_digest
from kvferry_runtime.agent.eviction import Compaction, Eviction
from kvferry_runtime.agent.slot_codec import SlotCodec
from kvferry_runtime.agent.slot_work import Method
from kvferry_runtime.auto.speeds import MethodSpeed
from kvferry_runtime.codec.sparse.budget import SparseMethod
from kvferry_runtime.errors import CodecError, CorruptPayload, LayoutError
from kvferry_runtime.layout import KvLayout, LayerShape
from kvferry_runtime.plan import Chunk
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.messages import Check
from kvferry_runtime.wire.data import DataHeader


class SparseSlots:
    """A `SlotCopier`. The memory of a transfer that leaves tokens out is an `Eviction` at the sender, a `Compaction`
    at the receiver; every other one is `dense`'s."""

    def __init__(self, method: SparseMethod, dense: SlotCodec) -> None:
        """dense: whose method is the exact one."""
        self.method: Method = method
        self.codecs: Mapping[str, Method] = {**dense.codecs, method.name: method}
        self._sparse = method
        self._dense = dense

    @property
    def busy(self) -> bool:
        return self._dense.busy

    def attached(self, ring: RingMemory) -> None:
        self._dense.attached(ring)

    def fill(
        self, ring: RingMemory, slot: int, layout: KvLayout, memory: KvMemory, transfer_id: str, generation: int,
        chunk: Chunk, method: str,
    ) -> DataHeader:  # fmt: skip
        """Write payload and header into the slot. method: of no meaning, as a transfer's tokens are chosen once.

        Raises:
            LayoutError: the engine's memory is not as announced; the slot's content is undefined.
            CodecRefused: no token of a layer can be chosen.
        """
        if not isinstance(memory, Eviction):
            return self._dense.fill(ring, slot, layout, memory, transfer_id, generation, chunk, "")
        layers = range(chunk.layer, chunk.layer + chunk.layer_count)
        payload = np.frombuffer(ring.slot_payload(slot), np.uint8)
        wire_bytes = memory.encode(layers, chunk.token_start, chunk.token_stop, payload)
        digest = payload_digest(payload[:wire_bytes], self._dense.integrity)
        shape = layout.shape(chunk.layer)
        header = chunk_header(transfer_id, generation, chunk, shape, self._sparse, wire_bytes, digest)
        ring.slot_header(slot)[:] = header.pack()
        return header

    def take_check(self, slot: int) -> Check | None:
        """None: kept tokens are exact."""
        return None

    def speed(self, method: str, shape: LayerShape) -> MethodSpeed:
        """A sparse method copies as `none` does, and that less."""
        if method != self._sparse.name:
            return self._dense.speed(method, shape)
        whole, share = self._dense.speed(self._dense.exact.name, shape), self._sparse.kept_percent / 100
        return MethodSpeed(method, share, whole.encode / share, whole.decode / share)

    def read(self, ring: RingMemory, slot: int, header: DataHeader, shape: LayerShape, memory: KvMemory) -> None:
        """Check the payload's digest, then write its rows.

        Raises:
            CorruptPayload: the digest or the content does not fit; nothing was written.
            CodecError: it came by another method than the one for which there is room; nothing was written.
            LayoutError: the engine's memory is not as announced, or the lengths exceed the slot.
        """
        if not isinstance(memory, Compaction):
            self._dense.read(ring, slot, header, shape, memory)
            return
        if header.codec != self._sparse.wire_id:
            raise CodecError(f"codec {header.codec}: this cache has room for what {self._sparse.name} keeps alone")
        if header.wire_bytes > ring.chunk_bytes:
            raise LayoutError(f"chunk of {header.wire_bytes} bytes in a slot of {ring.chunk_bytes}")
        payload = np.frombuffer(ring.slot_payload(slot), np.uint8)[: header.wire_bytes]
        if payload_digest(payload, self._dense.integrity) != header.digest:
            raise CorruptPayload(f"digest of chunk {header.sequence} does not fit")
        layers = range(header.layer, header.layer + header.layer_count)
        memory.decode(payload, layers, header.token_start, header.token_stop)
