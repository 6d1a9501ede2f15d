"""The slots of an agent whose method leaves tokens out; prompts so short that all are kept go as they are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.agent.choosing import Choosing
from kvferry_runtime.agent.chunk_header import checked_payload, chunk_header, payload_digest
from kvferry_runtime.agent.eviction import Compaction, Eviction
from kvferry_runtime.agent.slot_codec import SlotCodec
from kvferry_runtime.agent.slot_work import Method, SlotWork
from kvferry_runtime.auto.speeds import MethodSpeed
from kvferry_runtime.codec.sparse.budget import SparseMethod
from kvferry_runtime.errors import CodecError
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
    ) -> DataHeader | SlotWork[DataHeader]:  # fmt: skip
        """Write payload and header into the slot, or begin to, where a layer's tokens are not chosen yet.

        method: of no meaning, as a transfer's tokens are chosen once.

        Raises:
            LayoutError: the engine's memory is not as announced; the slot's content is undefined.
            CodecRefused: no token of a layer can be chosen.
        """
        if not isinstance(memory, Eviction):
            return self._dense.fill(ring, slot, layout, memory, transfer_id, generation, chunk, "")
        layers = range(chunk.layer, chunk.layer + chunk.layer_count)
        write = partial(self._write, ring, slot, layout, memory, transfer_id, generation, chunk)
        return write() if memory.is_chosen(layers) else Choosing(memory, layers, write)

    def _write(
        self, ring: RingMemory, slot: int, layout: KvLayout, memory: Eviction, transfer_id: str, generation: int,
        chunk: Chunk,
    ) -> DataHeader:  # fmt: skip
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
        if method != self._sparse.name:
            return self._dense.speed(method, shape)
        return sparse_speed(self._sparse, self._dense.speed(self._dense.exact.name, shape))

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
        payload = checked_payload(ring, slot, header, self._dense.integrity)
        layers = range(header.layer, header.layer + header.layer_count)
        memory.decode(payload, layers, header.token_start, header.token_stop)


def sparse_speed(method: SparseMethod, exact: MethodSpeed) -> MethodSpeed:
    """It copies as the exact method does, and that less."""
    share = method.kept_percent / 100
    return MethodSpeed(method.name, share, exact.encode / share, exact.decode / share)
