"""Method `k8v4` in torch: slow, obvious, and the oracle for every other implementation's bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kvferry_runtime.codec.base import Rows
from kvferry_runtime.codec.int8.reference import ReferenceInt8
from kvferry_runtime.codec.k8v4.format import GROUP, K8V4, LARGEST_CODE, SMALLEST_STEP, VALUE_LIMIT, Values
from kvferry_runtime.codec.torch_rows import float_tensor, scatter
from kvferry_runtime.layout import KvDtype

_SMALLEST_NORMAL = 2.0**-126
_LARGEST_FP16 = 65504.0


class ReferenceK8V4(K8V4):
    """Gathers all rows of values into one fp32 tensor [rows, groups, 32]."""

    def __init__(self) -> None:
        super().__init__(ReferenceInt8())

    def _encode_values(self, rows: Rows, dtype: KvDtype, values: Values) -> int | None:
        elements = torch.cat([float_tensor(array.copy(), dtype).float() for array in rows])
        carried = (elements.abs() < VALUE_LIMIT).all(dim=1)
        if not carried.all():
            return int((~carried).nonzero()[0])
        elements = torch.where(elements.abs() < _SMALLEST_NORMAL, 0.0, elements)
        head_dim = elements.shape[1]
        # a row's last group is filled up with its own last element, which changes neither of its ends
        filled = torch.cat([elements, elements[:, -1:].expand(-1, -head_dim % GROUP)], dim=1)
        groups = filled.view(len(elements), -1, GROUP)
        minima = _rounded_down(groups.amin(dim=2))
        steps = ((groups.amax(dim=2) - minima) / torch.full_like(minima, LARGEST_CODE)).bfloat16().float()
        steps = steps.clamp(min=SMALLEST_STEP)
        factors = torch.ones_like(steps) / steps
        codes = ((groups - minima[:, :, None]) * factors[:, :, None]).round().to(torch.uint8)
        codes = codes.flatten(1)[:, :head_dim]
        low, high = torch.nn.functional.pad(codes, (0, head_dim % 2)).chunk(2, dim=1)
        values.codes[:] = (low | high << 4).numpy()
        values.steps[:] = _bits(steps)
        values.minima[:] = _bits(minima)
        return None

    def _decode_values(self, values: Values, dtype: KvDtype, rows: Rows) -> None:
        head_dim = rows[0].shape[1]
        packed = torch.from_numpy(values.codes.copy())
        codes = torch.cat([packed & 0xF, packed >> 4], dim=1)[:, :head_dim].float()
        steps, minima = (
            float_tensor(halves, KvDtype.BF16).float().repeat_interleave(GROUP, dim=1)[:, :head_dim]
            for halves in (values.steps, values.minima)
        )
        elements = minima + codes * steps
        if dtype is KvDtype.FP16:
            elements = elements.clamp(-_LARGEST_FP16, _LARGEST_FP16)
        scatter(elements, dtype, rows)


def _rounded_down(values: torch.Tensor) -> torch.Tensor:
    """fp32 to the largest bf16 that is not above, as fp32."""
    cut = values.view(torch.int32) & ~0xFFFF
    is_above = cut.view(torch.float32) > values
    return torch.where(is_above, cut + 0x10000, cut).view(torch.float32)


def _bits(values: torch.Tensor) -> npt.NDArray[np.uint16]:
    """Of fp32 values that are bf16."""
    bits: npt.NDArray[np.uint16] = values.bfloat16().view(torch.int16).numpy().view(np.uint16)
    return bits
