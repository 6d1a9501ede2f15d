"""KV of one request in blocks that lie anywhere in the engine's cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvferry_runtime.agent.tensors import Elements, Tensor, elements
from kvferry_runtime.codec.base import Rows
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
        self._parts = [
            [_blocks_of_rows(array[:, part]) for part in range(shape.parts)]
            for array, shape in zip(arrays, layout.shapes, strict=True)
        ]

    def part(self, layer: int, part: int) -> Elements:
        """[blocks, block_tokens * heads, head_dim]; each block is contiguous. Raises LayoutError: no such layer."""
        self.layout.shape(layer)
        return self._parts[layer - self.layout.first_layer][part]


class PagedKv:
    """A `KvMemory`. block_ids: the request's blocks in order of its tokens."""

    def __init__(self, cache: PagedCache, block_ids: Sequence[int]) -> None:
        """Raises LayoutError: a block that the cache does not have, or the same one twice."""
        self._cache = cache
        self._block_ids = tuple(block_ids)
        outside = [block for block in self._block_ids if not 0 <= block < cache.blocks]
        if outside or len(set(self._block_ids)) != len(self._block_ids):
            raise LayoutError(f"blocks {outside or self._block_ids}: not in a cache of {cache.blocks}, or used twice")

    def rows(self, layer: int, part: int, token_start: int, token_stop: int) -> Rows:
        """Raises LayoutError: no such layer, part or tokens."""
        shape = self._cache.layout.shape(layer)
        size = self._cache.block_tokens
        if not 0 <= part < shape.parts or not 0 <= token_start <= token_stop <= len(self._block_ids) * size:
            raise LayoutError(
                f"part {part}, tokens {token_start} to {token_stop} are not within {len(self._block_ids)} blocks "
                f"of {size} tokens"
            )
        if token_start == token_stop:
            return []
        blocks = self._cache.part(layer, part)
        first, last = token_start // size, (token_stop - 1) // size
        rows = [blocks[block] for block in self._block_ids[first : last + 1]]
        # The last one is cut first: it may be the first one too.
        rows[-1] = rows[-1][: (token_stop - last * size) * shape.heads]
        rows[0] = rows[0][(token_start - first * size) * shape.heads :]
        return rows


def _blocks_of_rows(part: Elements) -> Elements:
    """[blocks, block_tokens, heads, head_dim] with contiguous blocks → [blocks, rows, head_dim], the same memory."""
    blocks, tokens, heads, head_dim = part.shape
    view = part.reshape(blocks, tokens * heads, head_dim)
    assert not part.size or np.may_share_memory(view, part), "merging contiguous dimensions makes no copy"
    return view
