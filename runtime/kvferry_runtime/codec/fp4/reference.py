"""Method `fp4` in torch: slow, obvious, and the oracle for every other implementation's bytes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from kvferry_runtime.codec.base import ChunkShape, Rows
from kvferry_runtime.codec.fp4.format import (
    EXPONENT_BIAS,
    GROUP,
    LARGEST_EXPONENT,
    LARGEST_SCALE,
    LARGEST_SCALE_AT_TOP,
    SMALLEST_EXPONENT,
    SMALLEST_SCALE,
    VALUES,
    Bytes,
    Fp4,
)
from kvferry_runtime.codec.torch_rows import float_tensor, scatter
from kvferry_runtime.layout import KvDtype

_MIDPOINTS = tuple((low + high) / 2 for low, high in pairwise(VALUES))


class ReferenceFp4(Fp4):
    """Gathers all rows into one fp32 tensor [rows, groups, 16], padded with zeros."""

    def _encode_rows(self, rows: Rows, shape: ChunkShape, codes: Bytes, scales: Bytes, exponents: Bytes) -> int | None:
        values = torch.cat([float_tensor(array.copy(), shape.dtype).float() for array in rows])
        finite = torch.isfinite(values).all(dim=1)
        if not finite.all():
            return int((~finite).nonzero()[0])
        padding = -shape.head_dim % GROUP
        groups = torch.nn.functional.pad(values, (0, padding)).view(shape.rows, -1, GROUP)
        largest = groups.abs().amax(dim=2)
        exponent = (largest.amax(dim=1).view(torch.int32) >> 23).clamp(min=SMALLEST_EXPONENT)
        scale = largest * _power_of_two(EXPONENT_BIAS - exponent)[:, None] * torch.tensor(1 / 6)
        limit = torch.where(exponent == LARGEST_EXPONENT[shape.dtype], LARGEST_SCALE_AT_TOP, LARGEST_SCALE)
        code = scale.to(torch.float8_e4m3fn).view(torch.uint8).int().clamp(min=SMALLEST_SCALE)
        code = torch.minimum(code, limit[:, None]).to(torch.uint8)
        restored = code.view(torch.float8_e4m3fn).float() * _power_of_two(exponent - EXPONENT_BIAS)[:, None]
        factor = torch.ones_like(restored) / restored
        elements = _e2m1(groups * factor[:, :, None]).view(shape.rows, -1)[:, : shape.head_dim]
        low, high = torch.nn.functional.pad(elements, (0, shape.head_dim % 2)).chunk(2, dim=1)
        codes[:] = (low | high << 4).numpy()
        scales[:] = code.numpy()
        exponents[:] = exponent.numpy().astype(np.uint8)
        return None

    def _decode_rows(self, codes: Bytes, scales: Bytes, exponents: Bytes, dtype: KvDtype, rows: Rows) -> None:
        packed = torch.from_numpy(codes.copy())
        elements = torch.cat([packed & 15, packed >> 4], dim=1)[:, : rows[0].shape[1]].long()
        values = torch.tensor([*VALUES, *(-value for value in VALUES)])
        values[8] = 0
        exponent = torch.from_numpy(exponents.astype(np.int32))
        scale = torch.from_numpy(scales.copy()).view(torch.float8_e4m3fn).float()
        scale = scale * _power_of_two(exponent - EXPONENT_BIAS)[:, None]
        spread = scale.repeat_interleave(GROUP, dim=1)[:, : elements.shape[1]]
        scatter(values[elements] * spread, dtype, rows)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """fp32 powers of integers within the range of normal numbers."""
    return (exponent + 127 << 23).view(torch.float32)


def _e2m1(scaled: torch.Tensor) -> torch.Tensor:
    """uint8 codes of fp32 values: how many midpoints lie below, where a tie goes to the even code."""
    magnitude = scaled.abs()
    code = torch.zeros_like(scaled, dtype=torch.uint8)
    for number, midpoint in enumerate(_MIDPOINTS):
        code += magnitude > midpoint if number % 2 == 0 else magnitude >= midpoint
    return code | scaled.signbit().to(torch.uint8) << 3
