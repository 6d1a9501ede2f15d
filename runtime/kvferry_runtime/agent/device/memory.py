"""KV of one request in blocks on a device, and when the device may read or write them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import NoReturn

import torch

from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.agent.device.streams import Device, Event, Stream
from kvferry_runtime.agent.device.uploaded import Uploaded
from kvferry_runtime.agent.in_flight import InFlight
from kvferry_runtime.codec.device.base import DeviceRows
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import KvDtype, KvLayout

ALIGNMENT = 16
"""Bytes that a kernel loads at once, if all rows start on a multiple of it."""

_DTYPES = {
    KvDtype.BF16: torch.bfloat16,
    KvDtype.FP16: torch.float16,
    KvDtype.FP32: torch.float32,
    KvDtype.UINT8: torch.uint8,
}


@dataclass(frozen=True, slots=True)
class _Layer:
    """planes: which of the cache's. strides: of block, token and head, in elements."""

    planes: slice
    strides: tuple[int, int, int]
    aligned: bool


class DeviceCache:
    """An engine's cache on a device: one tensor [blocks, parts, block_tokens, heads, head_dim] for each layer of
    `layout`. Any order in memory will do (give a permuted view), but for head_dim, which must be contiguous.
    A cache without blocks is one block: [1, parts, tokens, heads, head_dim].

    Nothing is asked of the device when it is made: an engine may have one for all requests, or one for each.
    """

    def __init__(self, layout: KvLayout, tensors: Sequence[torch.Tensor]) -> None:
        """Raises LayoutError: a tensor has another shape or dtype, or its rows are not contiguous."""
        if len(tensors) != len(layout.shapes):
            raise LayoutError(f"{len(tensors)} tensors for {len(layout.shapes)} layers")
        self.layout = layout
        self.blocks, _, self.block_tokens = (*tensors[0].shape, 0, 0, 0)[:3]
        for layer, shape, tensor in zip(layout.layers, layout.shapes, tensors, strict=True):
            needed = [self.blocks, shape.parts, self.block_tokens, shape.heads, shape.head_dim]
            if list(tensor.shape) != needed or self.block_tokens < 1 or tensor.dtype is not _DTYPES[shape.dtype]:
                raise LayoutError(
                    f"layer {layer}: tensor of {tensor.dtype} {list(tensor.shape)}, "
                    f"needed is {shape.dtype.value} {needed}"
                )
            if tensor.stride(4) != 1:
                raise LayoutError(f"layer {layer}: strides {tensor.stride()}: head_dim must be contiguous")
        self._tensors = list(tensors)
        self.planes = Uploaded([part.data_ptr() for tensor in tensors for part in tensor.unbind(1)], torch.int64)
        """Address of block 0 of each layer and part."""
        self._first_plane = [0]
        for shape in layout.shapes:
            self._first_plane.append(self._first_plane[-1] + shape.parts)
        self._aligned = [_aligned(tensor) for tensor in tensors]

    def layer(self, layers: range) -> _Layer:
        """Of layers that follow each other. Raises LayoutError: not held here, or not laid out in the same way."""
        for layer in (layers.start, layers.stop - 1):
            self.layout.shape(layer)
        first, stop = layers.start - self.layout.first_layer, layers.stop - self.layout.first_layer
        strides = {(tensor.stride(0), tensor.stride(2), tensor.stride(3)) for tensor in self._tensors[first:stop]}
        if len(strides) != 1:
            raise LayoutError(f"layers {layers} share a chunk but have strides {sorted(strides)}")
        return _Layer(
            planes=slice(self._first_plane[first], self._first_plane[stop]),
            strides=strides.pop(),
            aligned=all(self._aligned[first:stop]),
        )


class DeviceKv:
    """One request's blocks in a `DeviceCache`: the `KvMemory` of a `DeviceAgent`.

    block_ids: in order of the request's tokens. The engine's thread records events, the agent's thread asks for rows,
    and `in_flight` says how long the device is at it. resume_tokens: see `ResumableMemory`.
    """

    resume_tokens = 0

    def __init__(self, cache: DeviceCache, device: Device, block_ids: Sequence[int]) -> None:
        """Raises LayoutError: a block that the cache does not have, or the same one twice."""
        self._cache = cache
        self._device = device
        self._block_ids = list(block_ids)
        outside = [block for block in self._block_ids if not 0 <= block < cache.blocks]
        if outside or len(set(self._block_ids)) != len(self._block_ids):
            raise LayoutError(f"blocks {outside or self._block_ids}: not in a cache of {cache.blocks}, or used twice")
        self.in_flight = InFlight()
        self._final: dict[int, list[tuple[int, Event]]] = {layer: [] for layer in cache.layout.layers}
        self._before: list[Event] = []
        self._writes: list[Event] = []
        self._generation = 0
        self._table = Uploaded(self._block_ids, torch.int32)

    # ---- the engine's thread ----

    def lent(self) -> DeviceKv:
        """The same blocks for one of several offers: which of its layers are final, and what of it is in flight."""
        lent = copy(self)
        lent.in_flight = InFlight()
        lent._final = {layer: [] for layer in self._final}
        return lent

    def record_final(self, layer: int, token_stop: int) -> None:
        """The kernels that compute this layer up to `token_stop` are queued on the current stream."""
        self._cache.layout.shape(layer)
        self._final[layer].append((token_stop, self._device.record_current()))

    def record_writable(self) -> None:
        """All kernels that may still use what these blocks held before are queued on the current stream."""
        self._before = [self._device.record_current()]

    # ---- the agent's thread ----

    def rows(self, layer: int, part: int, token_start: int, token_stop: int) -> NoReturn:
        """Raises LayoutError: the host cannot read or write them."""
        raise LayoutError("this KV lies on a device: its engine needs the agent for devices")

    def await_final(self, stream: Stream, layers: range, token_stop: int) -> None:
        """Let `stream` wait until the device has computed these layers up to `token_stop`.

        Raises:
            LayoutError: they were not announced.
        """
        for layer in layers:
            event = next((event for stop, event in self._final[layer] if stop >= token_stop), None)
            if event is None:
                raise LayoutError(f"layer {layer} was not announced up to token {token_stop}")
            stream.wait(event)

    def await_writable(self, stream: Stream, generation: int) -> None:
        """Let `stream` wait until nothing uses the old content of the blocks, nor writes chunks of an older generation:
        streams overtake each other."""
        if generation != self._generation:
            self._before = [*self._before, *self._writes]
            self._generation, self._writes = generation, []
        for event in self._before:
            stream.wait(event)

    def written(self, event: Event) -> None:
        """A chunk of the newest generation is in place when the device has passed `event`."""
        self._writes.append(event)

    def await_table(self, stream: Stream) -> None:
        """Let `stream` wait until the device knows where the blocks are; the first call tells it."""
        self._cache.planes.await_on(self._device, stream)
        self._table.await_on(self._device, stream)

    def device_rows(self, layers: range, token_start: int, token_stop: int) -> DeviceRows:
        """For work submitted to a stream after `await_table`.

        Raises:
            LayoutError: no such layers, or tokens beyond the request's blocks.
        """
        size = self._cache.block_tokens
        if not 0 <= token_start < token_stop <= len(self._block_ids) * size:
            raise LayoutError(
                f"tokens {token_start} to {token_stop} are not within {len(self._block_ids)} blocks of {size} tokens"
            )
        layer = self._cache.layer(layers)
        planes = self._cache.planes.tensor[layer.planes]
        block_stride, token_stride, head_stride = layer.strides
        return DeviceRows(
            planes, self._table.tensor, size, token_start, block_stride, token_stride, head_stride, layer.aligned
        )


def on_device(memory: KvMemory) -> DeviceKv:
    """Raises LayoutError: this memory is the host's."""
    if not isinstance(memory, DeviceKv):
        raise LayoutError(f"{type(memory).__name__} lies in host memory: its engine needs the agent for host memory")
    return memory


def _aligned(tensor: torch.Tensor) -> bool:
    """Whether every row starts on, and has, a multiple of `ALIGNMENT` bytes."""
    distances = (*tensor.stride()[:4], tensor.shape[4])
    return tensor.data_ptr() % ALIGNMENT == 0 and all(
        distance * tensor.element_size() % ALIGNMENT == 0 for distance in distances
    )
