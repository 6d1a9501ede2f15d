"""KV of one request in blocks that lie anywhere in the engine's cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvferry_runtime.agent.tensors import Elements, Tensor, elements
from kvferry_runtime.codec.base import Rows
from kvferry_runtime.codec.paged_rows import BlockPool
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import KvLayout


class PagedCache:
    """tensors: one [blocks, parts, block_tokens, heads, head_dim] for each layer of `layout`, numpy or torch on the
    host. Checked once for an engine; each request then gets a `PagedKv` with its own blocks."""

    def __init__(self, layout: KvLayout, tensors: Sequence[Tensor]) -> None:
        """Raises LayoutError: a tensor has another shape, is not contiguous or not in host memory."""
        if len(tensors) != len(layout.shapes):
            raise LayoutError(f"{len(tensors)} tensors for {len(layout.shapes)} layers")
        arrays = [elements(tensor, shape.dtype) for tensor, shape in zip(tensors, layout.shapes, strict=True)]
        self.layout = layout
        self.blocks, _, self.block_tokens = (*arrays[0].shape, 0, 0, 0)[:3]
        for layer, shape, array in zip(layout.layers, layout.shapes, arrays, strict=True):
            needed = (self.blocks, shape.parts, self.block_tokens, shape.heads, shape.head_dim)
            if array.shape != needed or self.block_tokens < 1:
                raise LayoutError(f"layer {layer}: tensor of shape {array.shape}, needed is {list(needed)}")
        self._pools = [BlockPool(_parts_of_blocks(array)) for array in arrays]

    def pool(self, layer: int) -> BlockPool:
        """[blocks * parts, block_tokens * heads, head_dim]. Raises LayoutError: no such layer."""
        self.layout.shape(layer)
        return self._pools[layer - self.layout.first_layer]


class PagedKv:
    """A `KvMemory`. block_ids: the request's blocks in order of its tokens."""

    def __init__(self, cache: PagedCache, block_ids: Sequence[int]) -> None:
        """Raises LayoutError: a block that the cache does not have, or the same one twice."""
        self._cache = cache
        outside = [block for block in block_ids if not 0 <= block < cache.blocks]
        if outside or len(set(block_ids)) != len(block_ids):
            raise LayoutError(f"blocks {outside or block_ids}: not in a cache of {cache.blocks}, or used twice")
        self._blocks = np.array(block_ids, np.uint64)

    def rows(self, layer: int, part: int, token_start: int, token_stop: int) -> Rows:
        """Raises LayoutError: no such layer, part or tokens."""
        shape = self._cache.layout.shape(layer)
        size = self._cache.block_tokens
        if not 0 <= part < shape.parts or not 0 <= token_start <= token_stop <= len(self._blocks) * size:
            raise LayoutError(
                f"part {part}, tokens {token_start} to {token_stop} are not within {len(self._blocks)} blocks "
                f"of {size} tokens"
            )
        if token_start == token_stop:
            return []
        first, last = token_start // size, (token_stop - 1) // size
        return self._cache.pool(layer).part(
            self._blocks[first : last + 1] * shape.parts + part,
            (token_start - first * size) * shape.heads,
            (token_stop - token_start) * shape.heads,
        )


def _parts_of_blocks(array: Elements) -> Elements:
    """[blocks, parts, block_tokens, heads, head_dim], contiguous → [blocks * parts, rows, head_dim], a view."""
    blocks, parts, tokens, heads, head_dim = array.shape
    return array.reshape(blocks * parts, tokens * heads, head_dim)
