"""KV of one request in one tensor for each layer."""

from __future__ import annotations

from collections.abc import Sequence

from kvferry_runtime.agent.tensors import Tensor, elements
from kvferry_runtime.codec.base import Rows
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import KvLayout


class ContiguousKv:
    """A `KvMemory`. tensors: one [parts, tokens, heads, head_dim] for each layer of `layout`, numpy or torch on the
    host; there may be room for more tokens than the request has."""

    def __init__(self, layout: KvLayout, tensors: Sequence[Tensor]) -> None:
        """Raises LayoutError: a tensor has another shape, is not contiguous or not in host memory."""
        if len(tensors) != len(layout.shapes):
            raise LayoutError(f"{len(tensors)} tensors for {len(layout.shapes)} layers")
        self._layout = layout
        self._arrays = [elements(tensor, shape.dtype) for tensor, shape in zip(tensors, layout.shapes, strict=True)]
        for layer, shape, array in zip(layout.layers, layout.shapes, self._arrays, strict=True):
            if array.ndim != 4 or (array.shape[0], *array.shape[2:]) != (shape.parts, shape.heads, shape.head_dim):
                raise LayoutError(
                    f"layer {layer}: tensor of shape {array.shape}, "
                    f"needed is [{shape.parts}, tokens, {shape.heads}, {shape.head_dim}]"
                )

    def rows(self, layer: int, part: int, token_start: int, token_stop: int) -> Rows:
        """Raises LayoutError: no such layer, part or tokens."""
        shape = self._layout.shape(layer)
        array = self._arrays[layer - self._layout.first_layer]
        if not 0 <= part < shape.parts or not 0 <= token_start <= token_stop <= array.shape[1]:
            raise LayoutError(f"part {part}, tokens {token_start} to {token_stop} are not within {array.shape}")
        return [array[part, token_start:token_stop].reshape(-1, shape.head_dim)]
