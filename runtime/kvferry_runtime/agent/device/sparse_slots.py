"""The slots of a device's agent whose method leaves tokens out; prompts so short that all are kept go as they are."""

from __future__ import annotations

from collections.abc import Mapping

from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.agent.chunk_header import checked_payload
from kvferry_runtime.agent.device.eviction import DeviceEviction
from kvferry_runtime.agent.device.filling import Filling, Parcel
from kvferry_runtime.agent.device.memory import on_device
from kvferry_runtime.agent.device.placing import Placing
from kvferry_runtime.agent.device.slot_codec import DeviceSlotCodec
from kvferry_runtime.agent.device.sparse_chunks import SparseFilling, SparsePlacing
from kvferry_runtime.agent.device.sparse_warm_up import warm_up_sparse
from kvferry_runtime.agent.eviction import Compaction
from kvferry_runtime.agent.slot_work import Method
from kvferry_runtime.agent.sparse_slots import sparse_speed
from kvferry_runtime.auto.speeds import MethodSpeed
from kvferry_runtime.codec.sparse.budget import SparseMethod
from kvferry_runtime.errors import CodecError
from kvferry_runtime.layout import KvLayout, LayerShape
from kvferry_runtime.plan import Chunk
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.messages import Check
from kvferry_runtime.wire.data import DataHeader


class DeviceSparseSlots:
    """A `SlotCopier`. The memory of a transfer that leaves tokens out is a `DeviceEviction` at the sender, a
    `Compaction` at the receiver; every other one is `dense`'s."""

    def __init__(self, method: SparseMethod, dense: DeviceSlotCodec, block_tokens: int) -> None:
        """dense: whose method is the exact one. block_tokens: of the engine's cache."""
        self.method: Method = method
        self.codecs: Mapping[str, Method] = {**dense.codecs, method.name: method}
        self._sparse = method
        self._dense = dense
        self._block_tokens = block_tokens

    def warm_up(self, layout: KvLayout) -> None:
        """See `DeviceSlotCodec.warm_up`."""
        self._dense.warm_up(layout)
        for shape in set(layout.shapes):
            warm_up_sparse(self._dense.bench.device, shape, self._block_tokens)

    @property
    def working(self) -> int:
        """See `DeviceSlotCodec.working`."""
        return self._dense.working

    @property
    def busy(self) -> bool:
        return self._dense.busy

    def attached(self, ring: RingMemory) -> None:
        self._dense.attached(ring)

    def fill(
        self, ring: RingMemory, slot: int, layout: KvLayout, memory: KvMemory, transfer_id: str, generation: int,
        chunk: Chunk, method: str,
    ) -> Filling | SparseFilling:  # fmt: skip
        """Begin to write payload and header into the slot; the work's result is the header.

        method: of no meaning, as a transfer's tokens are chosen once.

        Raises:
            LayoutError: the engine's memory is not as announced, or not on a device.
        """
        if not isinstance(memory, DeviceEviction):
            return self._dense.fill(ring, slot, layout, memory, transfer_id, generation, chunk, "")
        parcel = Parcel(transfer_id, generation, chunk, layout.shape(chunk.layer))
        filling = SparseFilling(self._dense.bench, self._dense.pinned(ring), slot, memory, parcel, self._sparse)
        filling.start()
        return filling

    def take_check(self, slot: int) -> Check | None:
        """None: kept tokens are exact."""
        return None

    def speed(self, method: str, shape: LayerShape) -> MethodSpeed:
        if method != self._sparse.name:
            return self._dense.speed(method, shape)
        return sparse_speed(self._sparse, self._dense.speed(self._dense.exact.name, shape))

    def read(
        self, ring: RingMemory, slot: int, header: DataHeader, shape: LayerShape, memory: KvMemory
    ) -> Placing | SparsePlacing:
        """Check the payload and begin to write its rows; the work's result is true once they are in place.

        Raises:
            CorruptPayload: the digest or the content does not fit; nothing was written.
            CodecError: it came by another method than the one for which there is room; nothing was written.
            LayoutError: the engine's memory is not as announced, or the lengths exceed the slot.
        """
        if not isinstance(memory, Compaction):
            return self._dense.read(ring, slot, header, shape, memory)
        if header.codec != self._sparse.wire_id:
            raise CodecError(f"codec {header.codec}: this cache has room for what {self._sparse.name} keeps alone")
        payload = checked_payload(ring, slot, header, self._dense.bench.integrity)
        layers = range(header.layer, header.layer + header.layer_count)
        admitted = memory.admit(payload, layers, header.token_start, header.token_stop)
        kv = on_device(memory.memory)
        placing = SparsePlacing(self._dense.bench, self._dense.pinned(ring), slot, kv, header, admitted)
        placing.start()
        return placing

    def close(self, timeout: float) -> bool:
        """See `DeviceSlotCodec.close`."""
        return self._dense.close(timeout)
