"""One chunk on its way from a slot into an engine's blocks on a device."""

from __future__ import annotations

import torch

from kvferry_runtime.agent.device.memory import DeviceKv
from kvferry_runtime.agent.device.pinned_ring import PinnedRing
from kvferry_runtime.agent.device.work import Bench, QueuedWork
from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import STATUS_WORDS, DeviceCodec
from kvferry_runtime.wire.data import DataHeader


class Placing(QueuedWork[bool]):
    """The payload's digest was found right. `result` raises CorruptPayload if its content is not."""

    def __init__(
        self,
        bench: Bench,
        ring: PinnedRing,
        slot: int,
        memory: DeviceKv,
        header: DataHeader,
        codec: DeviceCodec,
    ) -> None:
        super().__init__(bench, ring, slot, memory)
        self._header = header
        self._codec = codec
        self._extent = ChunkShape(
            header.layer_count, header.parts, header.token_stop - header.token_start, header.head_stop,
            header.head_dim, header.dtype,
        )  # fmt: skip

    def start(self) -> None:
        """Raises LayoutError: the engine has its memory back."""
        self._memory.await_table(self._stream)
        self._memory.await_writable(self._stream, self._header.generation)
        self._memory.written(self._queue(self._decode, self._decoded))

    def _decode(self) -> None:
        device, header = self._bench.device, self._header
        layers = range(header.layer, header.layer + header.layer_count)
        rows = self._memory.device_rows(layers, header.token_start, header.token_stop)
        status = device.empty(STATUS_WORDS, torch.int32)
        buffer = device.empty(header.wire_bytes, torch.uint8)
        buffer.copy_(self._ring.payload(self._slot, header.wire_bytes), non_blocking=True)
        self._codec.decode(buffer, self._extent, rows, status)
        self._report(status)

    def _decoded(self) -> bool:
        problem, _ = self._reported()
        self._codec.finish_decode(problem, self._extent)
        return True
