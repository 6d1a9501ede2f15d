"""Payloads of sparse chunks as kernels for GPUs write them."""

from __future__ import annotations

import torch

from device_kv import Pages
from kvferry_runtime.codec.device.base import STATUS_WORDS
from kvferry_runtime.codec.device.sparse import Choice, pack
from kvferry_runtime.codec.sparse.payload import KeptTokens, longest_payload

HOST = torch.device("cpu")


def choices_of(kept: KeptTokens, where: torch.device = HOST) -> tuple[list[Choice], int]:
    """Of a prompt whose chunk begins behind as many kept tokens as the layer with most of them has; and where."""
    start = int(kept.before.max())
    choices = []
    for mask, before in zip(kept.mask, kept.before, strict=True):
        whole = torch.zeros(start + len(mask), dtype=torch.int32)
        whole[: int(before)] = 1
        whole[start:] = torch.from_numpy(mask)
        ranks = torch.cat([torch.zeros(1, dtype=torch.int32), whole.cumsum(0, dtype=torch.int32)])
        choices.append(Choice(whole.to(where), ranks.to(where)))
    return choices, start


def packed_on_device(pages: Pages, kept: KeptTokens) -> bytes:
    where = pages.layers[0].device
    out = torch.full((longest_payload(pages.shape),), 0xA5, dtype=torch.uint8, device=where)
    status = torch.full((STATUS_WORDS,), -1, dtype=torch.int32, device=where)
    choices, start = choices_of(kept, where)
    pack(pages.device_rows(), pages.shape, choices, start, out, status)
    problem, length = status.tolist()
    assert problem == 0
    return out[:length].cpu().numpy().tobytes()
