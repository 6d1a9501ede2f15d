"""Paged caches as a GPU's engine would have them, in host tensors, and their rows as the host's codecs take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import STATUS_WORDS, DeviceCodec, DeviceRows
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.layout import KvDtype

Elements = npt.NDArray[np.generic]

TORCH_DTYPES = {
    KvDtype.BF16: torch.bfloat16,
    KvDtype.FP16: torch.float16,
    KvDtype.FP32: torch.float32,
    KvDtype.UINT8: torch.uint8,
}
_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True)
class Pages:
    """A cache of one tensor [blocks, parts, block_tokens, heads, head_dim] a layer, and which tokens a chunk has.

    block_ids: of the request, in order of tokens. first_token: where the chunk starts in them.
    """

    shape: ChunkShape
    layers: Sequence[torch.Tensor]
    block_ids: Sequence[int]
    first_token: int

    def rows(self) -> list[Elements]:
        """One array [tokens * heads, head_dim] for each layer and part, copied."""
        stop = self.first_token + self.shape.tokens
        return [
            _elements(torch.cat([tensor[block, part] for block in self.block_ids])[self.first_token : stop], self.shape)
            for tensor in (layer.cpu() for layer in self.layers)
            for part in range(self.shape.parts)
        ]

    def device_rows(self) -> DeviceRows:
        first = self.layers[0]
        planes = [part.data_ptr() for tensor in self.layers for part in tensor.unbind(1)]
        width = first.element_size()
        distances = (*first.stride()[:4], first.shape[4])
        return DeviceRows(
            planes=torch.tensor(planes, device=first.device),
            blocks=torch.tensor(self.block_ids, dtype=torch.int32, device=first.device),
            block_tokens=first.shape[2],
            first_token=self.first_token,
            block_stride=first.stride(0),
            token_stride=first.stride(2),
            head_stride=first.stride(3),
            aligned=not any(number * width % 16 for number in distances) and not any(start % 16 for start in planes),
        )

    def on(self, device: torch.device) -> Pages:
        """The same cache in the memory of a device."""
        return replace(self, layers=[tensor.to(device) for tensor in self.layers])

    def blank(self) -> Pages:
        """The same places, filled with a pattern."""
        layers = [torch.empty_like(tensor) for tensor in self.layers]
        for tensor in layers:
            tensor.view(_SIGNED[tensor.element_size()]).fill_(0x5A)
        return replace(self, layers=layers)


def pages_of(rows: Elements, shape: ChunkShape, block_tokens: int, seed: int = 0, head_first: bool = False) -> Pages:
    """A cache that holds `rows` [shape.rows, head_dim] in shuffled blocks, starting in the middle of one.

    head_first: blocks lie in memory as [heads, block_tokens, head_dim].
    """
    dice = np.random.default_rng(seed)
    first_token = int(dice.integers(block_tokens))
    needed = -(-(first_token + shape.tokens) // block_tokens)
    block_ids = [int(block) for block in dice.permutation(needed + 3)[:needed]]
    values = _tensor(rows, shape).reshape(shape.layers, shape.parts, shape.tokens, shape.heads, shape.head_dim)
    layers = []
    for layer in range(shape.layers):
        tensor = _blank_cache(shape, needed + 3, block_tokens, head_first)
        for token in range(shape.tokens):
            block, place = divmod(first_token + token, block_tokens)
            tensor[block_ids[block], :, place] = values[layer, :, token]
        layers.append(tensor)
    return Pages(shape, layers, block_ids, first_token)


def encoded_on_device(codec: DeviceCodec, pages: Pages) -> bytes:
    """Raises NotEncodable."""
    where = pages.layers[0].device
    out = torch.full((codec.max_wire_bytes(pages.shape),), 0xA5, dtype=torch.uint8, device=where)
    status = torch.full((STATUS_WORDS,), -1, dtype=torch.int32, device=where)
    codec.encode(pages.device_rows(), pages.shape, out, status)
    problem, wire_bytes = status.tolist()
    return bytes(out[: codec.finish_encode(problem, wire_bytes, pages.shape)].cpu().numpy())


def decoded_on_device(codec: DeviceCodec, payload: bytes, pages: Pages) -> Pages:
    """What the payload says, at the places of `pages`. Raises CorruptPayload."""
    target = pages.blank()
    where = pages.layers[0].device
    status = torch.full((STATUS_WORDS,), -1, dtype=torch.int32, device=where)
    content = torch.frombuffer(bytearray(payload), dtype=torch.uint8).to(where)
    codec.decode(content, pages.shape, target.device_rows(), status)
    codec.finish_decode(status.tolist()[0], pages.shape)
    return target


def _blank_cache(shape: ChunkShape, blocks: int, block_tokens: int, head_first: bool) -> torch.Tensor:
    order = (shape.heads, block_tokens) if head_first else (block_tokens, shape.heads)
    tensor = torch.zeros(blocks, shape.parts, *order, shape.head_dim, dtype=TORCH_DTYPES[shape.dtype])
    return tensor.transpose(2, 3) if head_first else tensor


def _tensor(rows: Elements, shape: ChunkShape) -> torch.Tensor:
    signed = rows.view(f"i{shape.dtype.itemsize}") if shape.dtype.itemsize > 1 else rows
    return torch.from_numpy(signed.copy()).view(TORCH_DTYPES[shape.dtype])


def _elements(values: torch.Tensor, shape: ChunkShape) -> Elements:
    signed = values.contiguous().view(_SIGNED[shape.dtype.itemsize])
    return signed.reshape(-1, shape.head_dim).numpy().view(element_dtype(shape.dtype))
