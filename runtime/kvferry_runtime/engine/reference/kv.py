"""The KV cache: a budget of blocks, and one contiguous buffer for each request.

A request reserves room for its prompt and all it may generate when it is admitted, so it can never run out of cache
half-way and is never thrown out again. The blocks are a budget, not addresses: each request's cache is one tensor for
each layer, which the agent reads and writes without a gather.
"""

from __future__ import annotations

import torch

from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.layout import KvLayout

BLOCK_TOKENS = 16


def blocks_for(tokens: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-tokens // BLOCK_TOKENS)


class RequestKv:
    """One request's cache: for each layer [2, capacity, kv_heads, head_dim], part 0 is K, part 1 is V."""

    def __init__(self, layout: KvLayout, blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = layout.shapes[0]
        self.blocks = blocks
        self._layout = layout
        self._buffer = torch.empty(
            len(layout.shapes), 2, blocks * BLOCK_TOKENS, shape.heads, shape.head_dim, dtype=dtype, device=device
        )

    def store(self, layer: int, start: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write key and value, each [kv_heads, tokens, head_dim], from position `start` on."""
        part = self._buffer[layer, :, start : start + key.shape[1]]
        part[0].copy_(key.transpose(0, 1))
        part[1].copy_(value.transpose(0, 1))

    def view(self, layer: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the first `tokens` positions, each [1, kv_heads, tokens, head_dim]."""
        part = self._buffer[layer, :, :tokens].transpose(1, 2)
        return part[:1], part[1:]

    def share(self) -> SharedKv:
        """This cache as the agent reads or writes it."""
        return SharedKv(self._layout, self._buffer, mirrored=self._buffer.device.type != "cpu")


class SharedKv(ContiguousKv):
    """A cache that the agent reads or writes: the cache itself on a CPU, a mirror in pinned host memory for a GPU."""

    def __init__(self, layout: KvLayout, buffer: torch.Tensor, *, mirrored: bool) -> None:
        pinned = buffer.device.type == "cuda"
        self._mirror = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=pinned) if mirrored else None
        self._buffer = buffer
        super().__init__(layout, list(buffer if self._mirror is None else self._mirror))

    def publish(self, layer: int, start: int, stop: int) -> None:
        """Make what was computed for these tokens visible to the agent; when this returns, it is."""
        if self._mirror is not None:
            self._mirror[layer, :, start:stop].copy_(self._buffer[layer, :, start:stop])

    def adopt(self, tokens: int) -> None:
        """Make what the agent wrote for the first `tokens` positions visible to the engine."""
        if self._mirror is not None:
            self._buffer[:, :, :tokens].copy_(self._mirror[:, :, :tokens])


class KvPool:
    """The budget. Used by the engine's thread alone; `free` may be read from anywhere."""

    def __init__(self, layout: KvLayout, total_blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        self.total = total_blocks
        self.free = total_blocks
        self._layout = layout
        self._dtype = dtype
        self._device = device
        self._out: set[RequestKv] = set()

    def reserve(self, blocks: int) -> RequestKv:
        """A cache of `blocks` blocks; there must be as many free."""
        assert 0 < blocks <= self.free, f"{blocks} blocks asked, {self.free} free"
        kv = RequestKv(self._layout, blocks, self._dtype, self._device)
        self.free -= blocks
        self._out.add(kv)
        return kv

    def release(self, kv: RequestKv) -> None:
        """Give a cache back. Each exactly once, else KeyError."""
        self._out.remove(kv)
        self.free += kv.blocks
