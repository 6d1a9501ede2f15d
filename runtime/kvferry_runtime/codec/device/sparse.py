"""Sparse methods on a GPU: the choice, the gathering of what is kept, and its way back.

The format is stated in `kvferry_runtime.codec.sparse.payload`. Nothing here waits for the device, so that a chunk's
length is known only there, as that of a method without a fixed ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import DeviceRows
from kvferry_runtime.codec.device.launch import launch, launch_flat, row_grid
from kvferry_runtime.codec.device.raw import scatter_raw
from kvferry_runtime.codec.device.sparse_kernels import gather_kept, write_header
from kvferry_runtime.codec.sparse.payload import KeptTokens, longest_payload, rows_offset, token_bytes
from kvferry_runtime.errors import LayoutError

_BYTES_A_PROGRAM = 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tokens of one layer of a prompt are kept, on the device.

    mask: int32 [tokens], 1 for those that are. ranks: int32 [tokens + 1], kept ones before each, and in all.
    """

    mask: torch.Tensor
    ranks: torch.Tensor


def choose(scores: torch.Tensor, keep: int, first: int, last: int) -> Choice:
    """Queue what chooses as `codec.sparse.selection.select` does. scores: fp32 [tokens] on the device."""
    tokens = len(scores)
    mask = torch.ones(tokens, dtype=torch.int32, device=scores.device)
    behind = max(first, tokens - last)
    if first < behind:
        mask[first:behind] = 0
        # stable, ascending, NaN last: as the host sorts
        order = torch.sort(-scores[first:behind], stable=True).indices
        mask[first + order[: max(0, keep - first - (tokens - behind))]] = 1
    ranks = torch.zeros(tokens + 1, dtype=torch.int32, device=scores.device)
    torch.cumsum(mask, 0, dtype=torch.int32, out=ranks[1:])
    return Choice(mask, ranks)


def pack(
    rows: DeviceRows, shape: ChunkShape, choices: Sequence[Choice], token_start: int, out: torch.Tensor,
    status: torch.Tensor,
) -> None:  # fmt: skip
    """Queue the kernels that write the payload of a chunk to the front of `out`.

    choices: of each layer. token_start: the chunk's first token. status: int32 [2], as of a `DeviceCodec`.

    Raises:
        LayoutError: `out` has less room than a chunk may need that is kept whole.
    """
    longest, start = longest_payload(shape), rows_offset(shape)
    if out.numel() < longest:
        raise LayoutError(f"the payload needs {longest} bytes, the buffer has {out.numel()}")
    stop = token_start + shape.tokens
    mask = torch.stack([choice.mask[token_start:stop] for choice in choices])
    ranks = torch.stack([choice.ranks[token_start : stop + 1] for choice in choices])
    before = ranks[:, 0].contiguous()
    counts = ranks[:, -1] - before
    # tokens of the payload before each layer and part
    of_planes = counts.repeat_interleave(shape.parts)
    firsts = torch.cumsum(of_planes, 0, dtype=torch.int32) - of_planes
    launch_flat(
        write_header, -(-start // _BYTES_A_PROGRAM), out, before, mask, start, shape.tokens, LAYERS=shape.layers,
        SIZE=_BYTES_A_PROGRAM,
    )  # fmt: skip
    launch(
        gather_kept, rows, shape, out[start:], status, row_grid(shape), mask=mask, ranks=ranks, firsts=firsts,
        PARTS=shape.parts,
    )  # fmt: skip
    status[0].zero_()
    status[1:].copy_((start + counts.sum() * token_bytes(shape)).to(torch.int32))


def unpack(
    payload: torch.Tensor, shape: ChunkShape, kept: KeptTokens, sinks: Sequence[DeviceRows | None], status: torch.Tensor
) -> None:
    """Queue the kernels that write the kept rows.

    kept: what `codec.sparse.payload.read_kept` found in this payload. sinks: for each layer, where its kept tokens of
    this chunk belong; None if it has none.
    """
    start = rows_offset(shape)
    for count, sink in zip(kept.counts.tolist(), sinks, strict=True):
        if sink is not None:
            layer = ChunkShape(1, shape.parts, count, shape.heads, shape.head_dim, shape.dtype)
            scatter_raw(payload[start:], layer, sink, status)
        start += count * token_bytes(shape)
    status.zero_()
