"""How fast the device's codecs are, beside a copy within its memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from gpu_machine import Machine

from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import STATUS_WORDS, DeviceCodec, DeviceRows
from kvferry_runtime.codec.device.registry import device_codecs
from kvferry_runtime.layout import KvDtype

HEADS, HEAD_DIM, BLOCK_TOKENS = 8, 128, 16
TOKEN_BYTES = 2 * HEADS * HEAD_DIM * 2
CHUNKS_MB = (1, 4, 64)


@dataclass(frozen=True)
class PagedLayer:
    """One layer of bf16 values like those of KV, in blocks of 16 tokens."""

    tensor: torch.Tensor
    rows: DeviceRows
    shape: ChunkShape


def paged_layer(machine: Machine, size: int, block_tokens: int = BLOCK_TOKENS, shuffled: bool = True) -> PagedLayer:
    """About `size` bytes."""
    where = machine.gpu.where
    blocks = max(1, size // TOKEN_BYTES // block_tokens)
    tensor = torch.randn(blocks, 2, block_tokens, HEADS, HEAD_DIM, device=where)
    tensor[..., ::29] *= 25
    tensor = tensor.to(torch.bfloat16)
    order = torch.randperm(blocks, device=where) if shuffled else torch.arange(blocks, device=where)
    rows = DeviceRows(
        planes=torch.tensor([part.data_ptr() for part in tensor.unbind(1)], device=where),
        blocks=order.to(torch.int32),
        block_tokens=block_tokens,
        first_token=0,
        block_stride=tensor.stride(0),
        token_stride=tensor.stride(2),
        head_stride=tensor.stride(3),
        aligned=True,
    )
    return PagedLayer(tensor, rows, ChunkShape(1, 2, blocks * block_tokens, HEADS, HEAD_DIM, KvDtype.BF16))


def check(machine: Machine) -> Iterator[Figure]:
    """`gpu.codec.<method>.<size>.encode|decode` in GB/s of raw bytes, gathered from shuffled blocks, against a copy of
    as many bytes; `gpu.codec.<method>.<size>.size`: wire / raw."""
    for megabytes in CHUNKS_MB[:1] if machine.dry else CHUNKS_MB:
        layer = paged_layer(machine, megabytes * machine.megabyte)
        copied = _copied(machine, layer)
        for codec in device_codecs().values():
            yield from _figures(machine, layer, codec, f"gpu.codec.{codec.name}.{megabytes}MiB", copied)


def _copied(machine: Machine, layer: PagedLayer) -> float:
    """GB/s of a copy of the layer within the device's memory."""
    spare = torch.empty_like(layer.tensor)
    return layer.shape.raw_bytes / machine.seconds(lambda: spare.copy_(layer.tensor)) / 1e9


def _figures(machine: Machine, layer: PagedLayer, codec: DeviceCodec, prefix: str, copied: float) -> Iterator[Figure]:
    raw, shape = layer.shape.raw_bytes, layer.shape
    out = torch.empty(codec.max_wire_bytes(shape), dtype=torch.uint8, device=machine.gpu.where)
    status = torch.empty(STATUS_WORDS, dtype=torch.int32, device=machine.gpu.where)
    encode = raw / machine.seconds(lambda: codec.encode(layer.rows, shape, out, status)) / 1e9
    problem, length = status.tolist()
    payload = out[: codec.finish_encode(problem, length, shape)]
    decode = raw / machine.seconds(lambda: codec.decode(payload, shape, layer.rows, status)) / 1e9
    yield Figure(f"{prefix}.encode", encode, "GB/s", copied, encode / copied, machine.rounds)
    yield Figure(f"{prefix}.decode", decode, "GB/s", copied, decode / copied, machine.rounds)
    yield Figure(f"{prefix}.size", payload.numel() / raw, "wire/raw", None, None, 1)
