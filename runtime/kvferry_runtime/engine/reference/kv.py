"""The KV cache: a budget of blocks, and one contiguous buffer for each request.

A request reserves room for its prompt and all it may generate when it is admitted, so it can never run out of cache
half-way and is never thrown out again. The blocks are a budget, not addresses: each request's cache is one tensor for
each layer, so that attention reads it without a gather. On a GPU the agent reaches it block by block, as it would an
engine's pages.
"""

from __future__ import annotations

import torch

from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.agent.device.eviction import ObservedDeviceKv
from kvferry_runtime.agent.device.memory import DeviceCache, DeviceKv
from kvferry_runtime.agent.device.streams import Device
from kvferry_runtime.codec.sparse.selection import Scores
from kvferry_runtime.engine.reference.observation import AttentionMass
from kvferry_runtime.layout import KvLayout

BLOCK_TOKENS = 16


def blocks_for(tokens: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-tokens // BLOCK_TOKENS)


class RequestKv:
    """One request's cache: for each layer [2, capacity, kv_heads, head_dim], part 0 is K, part 1 is V. Layers are named
    by their global number.

    gpu: as the agent knows the device that holds it; None for an agent that reads and writes host memory.
    """

    def __init__(
        self, layout: KvLayout, blocks: int, dtype: torch.dtype, device: torch.device, gpu: Device | None = None
    ) -> None:
        shape = layout.shapes[0]
        self.blocks = blocks
        self._layout = layout
        self._first = layout.first_layer
        self._gpu = gpu
        self._buffer = torch.empty(
            len(layout.shapes), 2, blocks * BLOCK_TOKENS, shape.heads, shape.head_dim, dtype=dtype, device=device
        )

    def store(self, layer: int, start: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write key and value, each [kv_heads, tokens, head_dim], from place `start` on."""
        part = self._buffer[layer - self._first, :, start : start + key.shape[1]]
        part[0].copy_(key.transpose(0, 1))
        part[1].copy_(value.transpose(0, 1))

    def view(self, layer: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the first `tokens` places, each [1, kv_heads, tokens, head_dim]."""
        part = self._buffer[layer - self._first, :, :tokens].transpose(1, 2)
        return part[:1], part[1:]

    def share(self, resume_tokens: int = 0) -> KvMemory:
        """This cache as the agent reads or writes it. resume_tokens: see `ResumableMemory`.

        Raises:
            LayoutError: it is not in host memory, and no `gpu` says how the agent reaches it.
        """
        shared: HostKv | DeviceKv
        if self._gpu is None:
            shared = HostKv(self._layout, list(self._buffer))
        else:
            shared = DeviceKv(self._pages(), self._gpu, range(self.blocks))
        shared.resume_tokens = resume_tokens
        return shared

    def attention_mass(self, tokens: int) -> AttentionMass:
        """To take note of what is looked at in a prompt of `tokens` tokens."""
        return AttentionMass(self._layout, tokens, self._buffer.device)

    def share_observed(self, mass: AttentionMass) -> ObservedKv | ObservedDeviceKv:
        """This cache of a prompt of which only those tokens that matter will be sent.

        Raises:
            LayoutError: see `share`.
        """
        if self._gpu is None:
            return ObservedKv(self._layout, list(self._buffer), mass)
        return ObservedDeviceKv(self._pages(), self._gpu, range(self.blocks), mass.of)

    def in_host_memory(self) -> RequestKv:
        """This cache if it lies there, else a copy, for which the device is waited for."""
        if self._buffer.device.type == "cpu":
            return self
        copy = RequestKv(self._layout, self.blocks, self._buffer.dtype, torch.device("cpu"))
        copy._buffer.copy_(self._buffer)
        return copy

    def take(self, other: RequestKv) -> None:
        """Hold what `other`, a cache of the same size, holds."""
        if other is not self:
            self._buffer.copy_(other._buffer)

    def _pages(self) -> DeviceCache:
        """The same memory as blocks [blocks, 2, BLOCK_TOKENS, kv_heads, head_dim], strided. Asks nothing of the
        device."""
        return DeviceCache(self._layout, list(self._buffer.unflatten(2, (self.blocks, BLOCK_TOKENS)).transpose(1, 2)))


class HostKv(ContiguousKv):
    """A cache in host memory. A `ResumableMemory`."""

    resume_tokens = 0


class ObservedKv(HostKv):
    """A `ScoredMemory`: knows what the prompt's last queries look at."""

    def __init__(self, layout: KvLayout, tensors: list[torch.Tensor], mass: AttentionMass) -> None:
        super().__init__(layout, tensors)
        self.mass = mass

    def scores(self, layer: int) -> Scores:
        return self.mass.scores(layer)


class KvPool:
    """The budget. Used by the engine's thread alone; `free` may be read from anywhere."""

    def __init__(
        self, layout: KvLayout, total_blocks: int, dtype: torch.dtype, device: torch.device, gpu: Device | None = None
    ) -> None:
        """gpu: see `RequestKv`."""
        self.total = total_blocks
        self.free = total_blocks
        self._layout = layout
        self._dtype = dtype
        self._device = device
        self._gpu = gpu
        self._out: set[RequestKv] = set()

    def reserve(self, blocks: int) -> RequestKv:
        """A cache of `blocks` blocks; there must be as many free."""
        assert 0 < blocks <= self.free, f"{blocks} blocks asked, {self.free} free"
        kv = RequestKv(self._layout, blocks, self._dtype, self._device, self._gpu)
        self.free -= blocks
        self._out.add(kv)
        return kv

    def release(self, kv: RequestKv) -> None:
        """Give a cache back. Each exactly once, else KeyError."""
        self._out.remove(kv)
        self.free += kv.blocks
