"""Having the kernels of sparse methods compiled before the engine serves."""

from __future__ import annotations

import numpy as np
import torch

from kvferry_runtime.agent.device.memory import DeviceCache, DeviceKv
from kvferry_runtime.agent.device.streams import Device
from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import STATUS_WORDS
from kvferry_runtime.codec.device.sparse import choose, pack, unpack
from kvferry_runtime.codec.device.sparse_scores import from_keys
from kvferry_runtime.codec.sparse.payload import KeptTokens, longest_payload
from kvferry_runtime.codec.torch_rows import TORCH_DTYPES
from kvferry_runtime.layout import KvLayout, LayerShape

_BLOCKS = 2


def warm_up_sparse(device: Device, shape: LayerShape, block_tokens: int) -> None:
    """Send half of a small layer from one place to another. block_tokens: of the engine's cache; kernels are compiled
    for one size of blocks. Waits for the device."""
    tokens = _BLOCKS * block_tokens
    size = (_BLOCKS, shape.parts, block_tokens, shape.heads, shape.head_dim)
    stream, held = device.stream(), []

    def allocate() -> None:
        values = device.empty(tokens * shape.bytes_per_token, torch.uint8).zero_()
        held.append(values.view(TORCH_DTYPES[shape.dtype]).view(size))

    stream.submit(allocate)
    stream.record().synchronize()
    kv = DeviceKv(DeviceCache(KvLayout(1, 0, (shape,)), held), device, range(_BLOCKS))
    kv.await_table(stream)
    extent = ChunkShape.of(shape, 1, tokens)
    # of equal scores the earlier tokens are kept
    kept = KeptTokens((np.arange(tokens) < tokens // 2)[None], np.zeros(1, np.int64))

    def send() -> None:
        rows, status = kv.device_rows(range(1), 0, tokens), device.empty(STATUS_WORDS, torch.int32)
        choice = choose(from_keys(rows, extent), tokens // 2, 0, 0)
        payload = device.empty(longest_payload(extent), torch.uint8)
        pack(rows, extent, [choice], 0, payload, status)
        unpack(payload, extent, kept, [kv.device_rows(range(1), 0, tokens // 2)], status)

    stream.submit(send)
    stream.record().synchronize()
