"""Method `fp4` on a GPU. The format is stated in `kvferry_runtime.codec.fp4.format`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import DeviceCodec, DeviceRows
from kvferry_runtime.codec.device.fp4_kernels import check_scales, make_codes, make_scales, restore_rows
from kvferry_runtime.codec.device.launch import float_kind, grid_of, launch, launch_flat
from kvferry_runtime.codec.fp4.format import GROUP, LARGEST_EXPONENT
from kvferry_runtime.codec.fp4.reference import ReferenceFp4

if TYPE_CHECKING:
    import torch


class DeviceFp4(DeviceCodec):
    def __init__(self) -> None:
        super().__init__(ReferenceFp4())

    def _encode(self, rows: DeviceRows, shape: ChunkShape, out: torch.Tensor, status: torch.Tensor) -> None:
        kind, groups, top = float_kind(shape.dtype), -(-shape.head_dim // GROUP), LARGEST_EXPONENT[shape.dtype]
        by_group = grid_of(shape.rows, groups, GROUP)
        launch(make_scales, rows, shape, out, status, by_group, KIND=kind, GROUPS=groups, TOP_EXPONENT=top)
        by_byte = grid_of(shape.rows, -(-shape.head_dim // 2))
        launch(make_codes, rows, shape, out, status, by_byte, KIND=kind, GROUPS=groups)

    def _decode(self, payload: torch.Tensor, shape: ChunkShape, rows: DeviceRows, status: torch.Tensor) -> None:
        kind, groups, top = float_kind(shape.dtype), -(-shape.head_dim // GROUP), LARGEST_EXPONENT[shape.dtype]
        by_group = grid_of(shape.rows, groups)
        launch_flat(
            check_scales, by_group.programs, payload, status, shape.rows, HEAD_DIM=shape.head_dim, GROUPS=groups,
            ROWS=by_group.rows, WIDTH=by_group.width, TOP_EXPONENT=top,
        )  # fmt: skip
        by_byte = grid_of(shape.rows, -(-shape.head_dim // 2))
        launch(restore_rows, rows, shape, payload, status, by_byte, KIND=kind, GROUPS=groups)
