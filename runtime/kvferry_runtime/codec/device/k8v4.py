"""Method `k8v4` on a GPU: keys as `int8`, then values. The format is stated in `kvferry_runtime.codec.k8v4.format`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import DeviceCodec, DeviceRows
from kvferry_runtime.codec.device.k8v4_kernels import make_codes, make_steps, restore_rows
from kvferry_runtime.codec.device.launch import float_kind, grid_of, launch
from kvferry_runtime.codec.device.scaled import device_int8
from kvferry_runtime.codec.k8v4.format import GROUP
from kvferry_runtime.codec.k8v4.reference import ReferenceK8V4

if TYPE_CHECKING:
    import torch


class DeviceK8V4(DeviceCodec):
    def __init__(self) -> None:
        super().__init__(ReferenceK8V4())
        self._keys = device_int8()

    def _encode(self, rows: DeviceRows, shape: ChunkShape, out: torch.Tensor, status: torch.Tensor) -> None:
        half = replace(shape, parts=1)
        keys, values = _parts(rows)
        behind_keys = self._keys.max_wire_bytes(half)
        self._keys.encode(keys, half, out[:behind_keys], status)
        constants = {"KIND": float_kind(shape.dtype), "GROUPS": -(-shape.head_dim // GROUP)}
        by_group = grid_of(half.rows, constants["GROUPS"], GROUP)
        launch(make_steps, values, half, out[behind_keys:], status, by_group, **constants)
        launch(make_codes, values, half, out[behind_keys:], status, grid_of(half.rows, _code_bytes(half)), **constants)

    def _decode(self, payload: torch.Tensor, shape: ChunkShape, rows: DeviceRows, status: torch.Tensor) -> None:
        half = replace(shape, parts=1)
        keys, values = _parts(rows)
        behind_keys = self._keys.max_wire_bytes(half)
        self._keys.decode(payload[:behind_keys], half, keys, status)
        launch(
            restore_rows, values, half, payload[behind_keys:], status, grid_of(half.rows, _code_bytes(half)),
            KIND=float_kind(shape.dtype), GROUPS=-(-shape.head_dim // GROUP),
        )  # fmt: skip


def _parts(rows: DeviceRows) -> tuple[DeviceRows, DeviceRows]:
    """Keys and values of each layer."""
    planes = rows.planes.view(-1, 2)
    return replace(rows, planes=planes[:, 0].contiguous()), replace(rows, planes=planes[:, 1].contiguous())


def _code_bytes(shape: ChunkShape) -> int:
    """Of a row of values."""
    return -(-shape.head_dim // 2)
