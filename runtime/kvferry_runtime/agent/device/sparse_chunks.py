"""Chunks of sparse transfers between slots and an engine's blocks on a device."""

from __future__ import annotations

import numpy as np
import torch

from kvferry_runtime.agent.chunk_header import chunk_header, payload_digest
from kvferry_runtime.agent.device.eviction import DeviceEviction
from kvferry_runtime.agent.device.filling import Parcel
from kvferry_runtime.agent.device.memory import DeviceKv
from kvferry_runtime.agent.device.pinned_ring import PinnedRing
from kvferry_runtime.agent.device.work import Bench, QueuedWork
from kvferry_runtime.agent.eviction import Admitted
from kvferry_runtime.codec.device.base import STATUS_WORDS
from kvferry_runtime.codec.device.sparse import pack, unpack
from kvferry_runtime.codec.sparse.budget import SparseMethod
from kvferry_runtime.codec.sparse.payload import longest_payload
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.wire.data import DataHeader


class SparseFilling(QueuedWork[DataHeader]):
    """From the blocks of a prompt into a slot: choose, gather what is kept, see how long that is, copy."""

    def __init__(
        self, bench: Bench, ring: PinnedRing, slot: int, eviction: DeviceEviction, parcel: Parcel, method: SparseMethod
    ) -> None:
        super().__init__(bench, ring, slot, eviction.kv)
        self._eviction = eviction
        self._parcel = parcel
        self._method = method
        self._buffer: torch.Tensor | None = None

    def start(self) -> None:
        """Raises LayoutError: the layer was not announced, or the engine has its memory back."""
        if self._memory.in_flight.closed:
            raise LayoutError("the engine's memory was given back before its chunk was copied")
        self._memory.await_table(self._stream)
        self._memory.await_final(self._stream, self._parcel.layers, self._eviction.tokens)
        self._eviction.await_chosen(self._stream, self._parcel.layers)
        self._queue(self._pack, self._packed)

    def _pack(self) -> None:
        device, extent, chunk, layers = self._bench.device, self._parcel.extent, self._parcel.chunk, self._parcel.layers
        rows = self._memory.device_rows(layers, chunk.token_start, chunk.token_stop)
        status = device.empty(STATUS_WORDS, torch.int32)
        self._buffer = device.empty(longest_payload(extent), torch.uint8)
        pack(rows, extent, self._eviction.choices(layers), chunk.token_start, self._buffer, status)
        self._report(status)

    def _packed(self) -> None:
        _, wire_bytes = self._reported()
        self._queue(lambda: self._copy(wire_bytes), lambda: self._finish(wire_bytes))

    def _copy(self, wire_bytes: int) -> None:
        assert self._buffer is not None, "a buffer is copied after it was filled"
        self._ring.payload(self._slot, wire_bytes).copy_(self._buffer[:wire_bytes], non_blocking=True)
        self._buffer = None

    def _finish(self, wire_bytes: int) -> DataHeader:
        ring, parcel = self._ring.ring, self._parcel
        payload = np.frombuffer(ring.slot_payload(self._slot), np.uint8)[:wire_bytes]
        header = chunk_header(
            parcel.transfer_id, parcel.generation, parcel.chunk, parcel.shape, self._method, wire_bytes,
            payload_digest(payload, self._bench.integrity),
        )  # fmt: skip
        ring.slot_header(self._slot)[:] = header.pack()
        return header


class SparsePlacing(QueuedWork[bool]):
    """From a slot into blocks. admitted: what was found of the payload, whose digest was found right."""

    def __init__(
        self, bench: Bench, ring: PinnedRing, slot: int, memory: DeviceKv, header: DataHeader, admitted: Admitted
    ) -> None:
        super().__init__(bench, ring, slot, memory)
        self._header = header
        self._admitted = admitted

    def start(self) -> None:
        """Raises LayoutError: the engine has its memory back."""
        self._memory.await_table(self._stream)
        self._memory.await_writable(self._stream, self._header.generation)
        self._memory.written(self._queue(self._unpack, lambda: True))

    def _unpack(self) -> None:
        device, admitted, size = self._bench.device, self._admitted, self._header.wire_bytes
        sinks = [
            self._memory.device_rows(range(layer, layer + 1), place.start, place.stop) if place else None
            for layer, place in enumerate(admitted.places, self._header.layer)
        ]
        status = device.empty(STATUS_WORDS, torch.int32)
        buffer = device.empty(size, torch.uint8)
        buffer.copy_(self._ring.payload(self._slot, size), non_blocking=True)
        unpack(buffer, admitted.shape, admitted.kept, sinks, status)
