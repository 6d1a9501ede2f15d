"""What tokens are worth, on a GPU: as on the host, but for the last bits of fp32."""

from __future__ import annotations

import torch

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import STATUS_WORDS, DeviceRows
from kvferry_runtime.codec.device.raw import gather_raw
from kvferry_runtime.codec.sparse.scores import NEIGHBOURS
from kvferry_runtime.codec.torch_rows import TORCH_DTYPES


def from_attention(mass: torch.Tensor) -> torch.Tensor:
    """fp32 [tokens] of fp32 [heads, tokens]: the mean of a token's neighbourhood, averaged over the heads."""
    padded = torch.nn.functional.pad(mass.mean(dim=0), (NEIGHBOURS // 2, NEIGHBOURS // 2))
    return padded.unfold(0, NEIGHBOURS, 1).mean(dim=1)


def from_keys(rows: DeviceRows, shape: ChunkShape) -> torch.Tensor:
    """fp32 [tokens] of one layer's rows, whose part 0 are the keys of all tokens: how little they point where the
    layer's keys point on average. Queues a copy of the layer and a few kernels on the current stream."""
    raw = torch.empty(shape.raw_bytes, dtype=torch.uint8, device=rows.planes.device)
    gather_raw(rows, shape, raw, torch.zeros(STATUS_WORDS, dtype=torch.int32, device=raw.device))
    layer = raw.view(TORCH_DTYPES[shape.dtype]).view(shape.parts, shape.tokens, shape.heads, shape.head_dim)
    unit = layer[0].float().nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    # scaled by the largest value first, as squares of large keys do not fit into fp32
    _divide(unit, unit.abs().amax(dim=2, keepdim=True))
    _divide(unit, torch.linalg.vector_norm(unit, dim=2, keepdim=True))
    mean = unit.mean(dim=0)
    _divide(mean, torch.linalg.vector_norm(mean, dim=1, keepdim=True))
    return -torch.einsum("thd,hd->th", unit, mean).mean(dim=1)


def _divide(values: torch.Tensor, by: torch.Tensor) -> None:
    """In place; zeros stay zeros."""
    values.div_(torch.where(by > 0, by, torch.ones_like(by)))
