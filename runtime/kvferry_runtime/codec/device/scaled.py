"""Methods `int8`, `fp8`, `fp8-head` and `fp8-tensor` on a GPU. One pass where each row has a scale, else two."""

from __future__ import annotations

import numpy as np
import torch

from kvferry_runtime.codec.base import ChunkShape, ScaleScope
from kvferry_runtime.codec.device.base import DeviceCodec, DeviceRows
from kvferry_runtime.codec.device.launch import float_kind, launch, row_grid
from kvferry_runtime.codec.device.scaled_kernels import decode_rows, encode_rows, find_largest
from kvferry_runtime.codec.fp8.format import Fp8
from kvferry_runtime.codec.fp8.reference import ReferenceFp8, ReferenceFp8Head, ReferenceFp8Tensor
from kvferry_runtime.codec.int8.reference import ReferenceInt8
from kvferry_runtime.codec.scaled.format import ScaledRows
from kvferry_runtime.codec.scaled.scopes import scale_count
from kvferry_runtime.layout import KvDtype

_TORCH_DTYPES = {KvDtype.BF16: torch.bfloat16, KvDtype.FP16: torch.float16, KvDtype.FP32: torch.float32}


class DeviceScaledRows(DeviceCodec):
    def __init__(self, form: ScaledRows) -> None:
        super().__init__(form)
        self._largest_code = form.largest_code
        self._smallest_scale = form.smallest_scale
        self._fp8 = isinstance(form, Fp8)

    def _encode(self, rows: DeviceRows, shape: ChunkShape, out: torch.Tensor, status: torch.Tensor) -> None:
        grid, kind, scope = row_grid(shape), float_kind(shape.dtype), int(self.scale_scope)
        largest = status
        if self.scale_scope is not ScaleScope.TOKEN_AND_HEAD:
            largest = torch.zeros(scale_count(self.scale_scope, shape), dtype=torch.int32, device=out.device)
            launch(find_largest, rows, shape, out, status, grid, largest=largest, KIND=kind, SCOPE=scope)
        launch(
            encode_rows, rows, shape, out, status, grid, largest=largest, KIND=kind, SCOPE=scope, FP8=self._fp8,
            LARGEST_CODE=self._largest_code, SMALLEST_SCALE=self._smallest_scale,
        )  # fmt: skip

    def _decode(self, payload: torch.Tensor, shape: ChunkShape, rows: DeviceRows, status: torch.Tensor) -> None:
        largest_scale = np.float32(torch.finfo(_TORCH_DTYPES[shape.dtype]).max) / np.float32(self._largest_code)
        launch(
            decode_rows, rows, shape, payload, status, row_grid(shape), KIND=float_kind(shape.dtype),
            SCOPE=int(self.scale_scope), FP8=self._fp8, LARGEST_SCALE=float(largest_scale),
            SMALLEST_SCALE=self._smallest_scale,
        )  # fmt: skip


def device_int8() -> DeviceScaledRows:
    return DeviceScaledRows(ReferenceInt8())


def device_fp8() -> DeviceScaledRows:
    return DeviceScaledRows(ReferenceFp8())


def device_fp8_head() -> DeviceScaledRows:
    return DeviceScaledRows(ReferenceFp8Head())


def device_fp8_tensor() -> DeviceScaledRows:
    return DeviceScaledRows(ReferenceFp8Tensor())
