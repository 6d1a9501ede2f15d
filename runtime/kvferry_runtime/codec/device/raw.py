"""Method `none` on a GPU: one gather or scatter. The format is stated in `kvferry_runtime.codec.none.format`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import DeviceCodec, DeviceRows
from kvferry_runtime.codec.device.launch import launch, row_grid
from kvferry_runtime.codec.device.raw_kernels import move_rows
from kvferry_runtime.codec.none.format import NoneCodec

if TYPE_CHECKING:
    import torch


class DeviceNone(DeviceCodec):
    def __init__(self) -> None:
        super().__init__(NoneCodec())

    def _encode(self, rows: DeviceRows, shape: ChunkShape, out: torch.Tensor, status: torch.Tensor) -> None:
        gather_raw(rows, shape, out, status)

    def _decode(self, payload: torch.Tensor, shape: ChunkShape, rows: DeviceRows, status: torch.Tensor) -> None:
        scatter_raw(payload, shape, rows, status)


def gather_raw(rows: DeviceRows, shape: ChunkShape, out: torch.Tensor, status: torch.Tensor) -> None:
    """Queue what copies the rows, one behind the other, to the front of `out`. status: not touched."""
    launch(move_rows, rows, shape, out, status, row_grid(shape), GATHER=True)


def scatter_raw(payload: torch.Tensor, shape: ChunkShape, rows: DeviceRows, status: torch.Tensor) -> None:
    """The other way round."""
    launch(move_rows, rows, shape, payload, status, row_grid(shape), GATHER=False)
