"""One chunk from an engine's blocks on a device into a slot of the ring, and back, without waiting for the device.

Sending: wait for the layer's event → gather and encode into a buffer on the device → copy into the slot → event →
digest. Loading: digest → copy into a buffer on the device → decode and scatter → event. What stands between arrows is
queued on a side stream; only the digest runs in the agent's thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from kvferry_contract.config import Integrity
from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.agent.chunk_header import checked_payload
from kvferry_runtime.agent.device.filling import Filling, Parcel
from kvferry_runtime.agent.device.lanes import Lanes
from kvferry_runtime.agent.device.memory import on_device
from kvferry_runtime.agent.device.method_speed import measure, warm_up
from kvferry_runtime.agent.device.pinned_ring import PinnedRing
from kvferry_runtime.agent.device.placing import Placing
from kvferry_runtime.agent.device.streams import Device
from kvferry_runtime.agent.device.work import Bench
from kvferry_runtime.agent.self_check import SelfCheck
from kvferry_runtime.auto.speeds import MethodSpeed
from kvferry_runtime.codec import registry
from kvferry_runtime.codec.base import Codec, Payload
from kvferry_runtime.codec.device.base import DeviceCodec
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape
from kvferry_runtime.plan import Chunk
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.messages import Check
from kvferry_runtime.wire.data import DataHeader


class DeviceSlotCodec:
    """method: codec for chunks that need not be exact. exact: codec for all others. codecs: for decoding, by name.

    hosts: the lossy ones of them on the host, where `checks` looks at what they do to the values. block_tokens: of the
    engine's cache. Only for the agent's thread, but for `close`, which comes after it.
    """

    def __init__(
        self,
        device: Device,
        method: DeviceCodec,
        exact: DeviceCodec,
        codecs: Mapping[str, DeviceCodec],
        hosts: Mapping[str, Codec],
        integrity: Integrity,
        checks: SelfCheck,
        block_tokens: int,
    ) -> None:
        self.method = method
        self.exact = exact
        self.codecs = codecs
        self._hosts = hosts
        self._checks = checks
        self.bench = Bench(device, Lanes(device), integrity)
        self._block_tokens = block_tokens
        self._ring: PinnedRing | None = None

    def warm_up(self, layout: KvLayout) -> None:
        """Have every kernel compiled that the usual method needs for these layers. Waits: before the engine serves."""
        for shape in set(layout.shapes):
            warm_up(self.bench.device, self.exact, shape, self._block_tokens)
            if self.method is not self.exact and shape.dtype is not KvDtype.UINT8:
                warm_up(self.bench.device, self.method, shape, self._block_tokens)

    @property
    def working(self) -> int:
        """Slots on which the device works. From any thread."""
        return 0 if self._ring is None else self._ring.in_flight.count

    @property
    def busy(self) -> bool:
        """See `SlotCopier.busy`. From any thread."""
        return self.working > 0

    def attached(self, ring: RingMemory) -> None:
        """Start registering this ring with the device, and let go of the one before it, which must not be busy: it may
        be another mapping of the same slots."""
        if self._ring is not None:
            self._ring.close()
        self._ring = PinnedRing(self.bench.device, ring)

    def fill(
        self, ring: RingMemory, slot: int, layout: KvLayout, memory: KvMemory, transfer_id: str, generation: int,
        chunk: Chunk, method: str,
    ) -> Filling:  # fmt: skip
        """Begin to write payload and header into the slot; the work's result is the header.

        Raises:
            LayoutError: the engine's memory is not as announced, or not on a device.
        """
        parcel = Parcel(transfer_id, generation, chunk, layout.shape(chunk.layer))
        codec = self._codec(parcel, method, ring.chunk_bytes)
        passes = None
        if codec.lossy and self._checks.due(slot):
            passes = partial(self._passes, parcel, codec, slot)
        pinned = self.pinned(ring)
        filling = Filling(self.bench, pinned, slot, on_device(memory), parcel, codec, self.exact, passes)
        filling.start()
        return filling

    def read(self, ring: RingMemory, slot: int, header: DataHeader, shape: LayerShape, memory: KvMemory) -> Placing:
        """Check the payload's digest and begin to write its rows; the work's result is true once they are in place.

        Raises:
            CorruptPayload: the digest does not fit. Nothing was written.
            CodecError: it was encoded by a method that we do not have; nothing was written.
            LayoutError: the engine's memory is not as announced, or the lengths exceed the slot.
        """
        codec = registry.by_wire_id(self.codecs, header.codec)
        checked_payload(ring, slot, header, self.bench.integrity)
        placing = Placing(self.bench, self.pinned(ring), slot, on_device(memory), header, codec)
        placing.start()
        return placing

    def take_check(self, slot: int) -> Check | None:
        """See `SlotCodec.take_check`."""
        return self._checks.take(slot)

    def speed(self, method: str, shape: LayerShape) -> MethodSpeed:
        """Of this method on one layer's values, with the copy over the bus. Waits for the device: before it serves."""
        return measure(self.bench.device, self.codecs[method], shape, self._block_tokens)

    def pinned(self, ring: RingMemory) -> PinnedRing:
        """This ring as the device reaches it. Waits for the driver, at most for some seconds, the first time."""
        if self._ring is None or self._ring.ring is not ring:
            self.attached(ring)
        assert self._ring is not None, "it was attached just now"
        self._ring.await_registration()
        return self._ring

    def close(self, timeout: float) -> bool:
        """Wait for what is queued, at most `timeout` seconds, and let go of the ring. Returns whether all was done."""
        if self._ring is not None:
            self._ring.close()
        return self.bench.lanes.close(timeout)

    def _codec(self, parcel: Parcel, method: str, room: int) -> DeviceCodec:
        """The method where it may be used, and its payload fits and is smaller than the rows (or, of an exact one, no
        larger), else the exact codec."""
        codec = self.exact if parcel.chunk.exact else self.codecs[method] if method else self.method
        longest = codec.max_wire_bytes(parcel.extent)
        largest = parcel.extent.raw_bytes - 1 if codec.lossy else parcel.extent.raw_bytes
        pays = longest <= min(room, largest)
        return codec if pays and self._checks.allows(codec.name, parcel.layers) else self.exact

    def _passes(
        self, parcel: Parcel, codec: DeviceCodec, slot: int, rows: npt.NDArray[np.generic], payload: Payload
    ) -> bool:
        return self._checks.passes(self._hosts[codec.name], [rows], payload, parcel.extent, parcel.layers, slot)
