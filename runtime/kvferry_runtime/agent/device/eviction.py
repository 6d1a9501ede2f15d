"""Sparse transfers from a device: tokens are chosen there, by kernels behind those that compute the layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.agent.device.memory import DeviceCache, DeviceKv, on_device
from kvferry_runtime.agent.device.streams import Device, Event, Stream
from kvferry_runtime.agent.eviction import Eviction
from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.sparse import Choice, choose
from kvferry_runtime.codec.device.sparse_scores import from_attention, from_keys
from kvferry_runtime.codec.sparse.budget import Budget
from kvferry_runtime.layout import KvLayout


class ObservedDeviceKv(DeviceKv):
    """Blocks of an engine that knows which tokens of a prompt are looked at."""

    def __init__(
        self, cache: DeviceCache, device: Device, block_ids: Sequence[int], mass: Callable[[int], torch.Tensor]
    ) -> None:
        """mass: fp32 [heads, tokens] on the device of a global layer: attention that each token gets, by KV head. The
        kernels that add it up must be queued before the layer is said to be final."""
        super().__init__(cache, device, block_ids)
        self.mass = mass


class DeviceEviction(Eviction):
    """memory: a `DeviceKv`. One that is no `ObservedDeviceKv` is judged by its keys."""

    def __init__(self, budget: Budget, layout: KvLayout, memory: KvMemory, tokens: int) -> None:
        """Raises LayoutError: the memory is the host's."""
        super().__init__(budget, layout, memory, tokens)
        self.kv = on_device(memory)
        self._choices: dict[int, Choice] = {}
        self._chosen: dict[int, Event] = {}

    def await_chosen(self, stream: Stream, layers: range) -> None:
        """Let `stream`, which waits for these layers, wait for their choice, too; the first call queues that."""
        for layer in layers:
            if layer not in self._chosen:
                stream.submit(partial(self._choose, layer))
                self._chosen[layer] = stream.record()
            stream.wait(self._chosen[layer])

    def choices(self, layers: range) -> list[Choice]:
        """For work on a stream after `await_chosen`."""
        return [self._choices[layer] for layer in layers]

    def _choose(self, layer: int) -> None:
        budget = self._budget
        self._choices[layer] = choose(self._device_scores(layer), budget.kept(self.tokens), budget.first, budget.last)

    def _device_scores(self, layer: int) -> torch.Tensor:
        if isinstance(self.kv, ObservedDeviceKv):
            return from_attention(self.kv.mass(layer))
        shape = ChunkShape.of(self._layout.shape(layer), 1, self.tokens)
        return from_keys(self.kv.device_rows(range(layer, layer + 1), 0, self.tokens), shape)
