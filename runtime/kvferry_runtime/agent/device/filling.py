"""One chunk on its way from an engine's blocks on a device into a slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvferry_runtime.agent.chunk_header import chunk_header, payload_digest
from kvferry_runtime.agent.device.memory import DeviceKv
from kvferry_runtime.agent.device.pinned_ring import PinnedRing
from kvferry_runtime.agent.device.work import Bench, QueuedWork
from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import STATUS_WORDS, DeviceCodec, DeviceRows
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.errors import NotEncodable
from kvferry_runtime.layout import LayerShape
from kvferry_runtime.plan import Chunk
from kvferry_runtime.wire.data import DataHeader


@dataclass(frozen=True, slots=True)
class Parcel:
    """Which chunk is to be filled in. shape: of each of its layers."""

    transfer_id: str
    generation: int
    chunk: Chunk
    shape: LayerShape

    @property
    def layers(self) -> range:
        return range(self.chunk.layer, self.chunk.layer + self.chunk.layer_count)

    @property
    def extent(self) -> ChunkShape:
        chunk = self.chunk
        return ChunkShape.of(self.shape, chunk.layer_count, chunk.token_stop - chunk.token_start)


Passes = Callable[[npt.NDArray[np.generic], npt.NDArray[np.uint8]], bool]
"""Whether rows [rows, head_dim], as unsigned integers, survive in this payload: False sends the chunk exact."""


class Filling(QueuedWork[DataHeader]):
    """codec: tried first. exact: takes over what that cannot carry or spoils.

    passes: asked of a chunk that is to be checked; None for all others.
    """

    def __init__(
        self,
        bench: Bench,
        ring: PinnedRing,
        slot: int,
        memory: DeviceKv,
        parcel: Parcel,
        codec: DeviceCodec,
        exact: DeviceCodec,
        passes: Passes | None,
    ) -> None:
        super().__init__(bench, ring, slot, memory)
        self._parcel = parcel
        self._codec = codec
        self._exact = exact
        self._passes = passes
        self._rows: torch.Tensor | None = None
        self._buffer: torch.Tensor | None = None

    def start(self) -> None:
        """Raises LayoutError: the layer was not announced, or the engine has its memory back."""
        self._memory.await_table(self._stream)
        self._memory.await_final(self._stream, self._parcel.layers, self._parcel.chunk.token_stop)
        self._queue_encode()

    def _queue_encode(self) -> None:
        if self._codec.fixed_ratio:
            self._queue(self._encode_and_copy, self._encoded)
        else:
            self._queue(self._encode, self._encoded)

    def _encode(self) -> None:
        device, codec, chunk = self._bench.device, self._codec, self._parcel.chunk
        rows = self._memory.device_rows(self._parcel.layers, chunk.token_start, chunk.token_stop)
        status = device.empty(STATUS_WORDS, torch.int32)
        self._buffer = device.empty(codec.max_wire_bytes(self._parcel.extent), torch.uint8)
        codec.encode(rows, self._parcel.extent, self._buffer, status)
        self._report(status)
        if self._passes is not None:
            self._fetch_rows(rows)

    def _fetch_rows(self, rows: DeviceRows) -> None:
        """Bring the values themselves to the host too, to be compared."""
        device, extent = self._bench.device, self._parcel.extent
        raw = device.empty(extent.raw_bytes, torch.uint8)
        self._exact.encode(rows, extent, raw, device.empty(STATUS_WORDS, torch.int32))
        self._rows = device.pinned(extent.rows, extent.head_dim * extent.dtype.itemsize, torch.uint8)
        self._rows.view(-1).copy_(raw, non_blocking=True)

    def _encode_and_copy(self) -> None:
        self._encode()
        self._copy(self._codec.max_wire_bytes(self._parcel.extent))

    def _copy(self, wire_bytes: int) -> None:
        assert self._buffer is not None, "a buffer is copied after it was filled"
        self._ring.payload(self._slot, wire_bytes).copy_(self._buffer[:wire_bytes], non_blocking=True)
        self._buffer = None

    def _encoded(self) -> DataHeader | None:
        try:
            wire_bytes = self._codec.finish_encode(*self._reported(), self._parcel.extent)
        except NotEncodable:
            self._go_exact()
            return None
        if self._codec.fixed_ratio:
            return self._finish(wire_bytes)
        self._queue(lambda: self._copy(wire_bytes), lambda: self._finish(wire_bytes))
        return None

    def _go_exact(self) -> None:
        self._codec = self._exact
        self._passes = self._rows = None
        self._queue_encode()

    def _finish(self, wire_bytes: int) -> DataHeader | None:
        ring, parcel = self._ring.ring, self._parcel
        payload = np.frombuffer(ring.slot_payload(self._slot), np.uint8)[:wire_bytes]
        if self._passes is not None and self._rows is not None:
            rows = self._rows.numpy().view(element_dtype(parcel.extent.dtype))
            if not self._passes(rows, payload):
                self._go_exact()
                return None
        header = chunk_header(
            parcel.transfer_id, parcel.generation, parcel.chunk, parcel.shape, self._codec, wire_bytes,
            payload_digest(payload, self._bench.integrity),
        )  # fmt: skip
        ring.slot_header(self._slot)[:] = header.pack()
        return header
