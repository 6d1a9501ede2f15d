"""The methods in torch: slow, obvious, and the oracle for every other implementation's bytes.

Divisions have tensors on both sides (`127.0 / tensor` is a reciprocal times 127 in torch), and saturation is explicit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from kvferry_runtime.codec.base import Rows
from kvferry_runtime.codec.fp8 import Fp8
from kvferry_runtime.codec.int8 import Int8
from kvferry_runtime.codec.scaled_rows import Codes, ScaledRows, Scales
from kvferry_runtime.layout import KvDtype

_TORCH_DTYPES: Mapping[KvDtype, torch.dtype] = {
    KvDtype.BF16: torch.bfloat16,
    KvDtype.FP16: torch.float16,
    KvDtype.FP32: torch.float32,
}


class ReferenceRows(ScaledRows):
    """Gathers all rows into one fp32 tensor [rows, head_dim]."""

    def _encode_rows(self, rows: Rows, dtype: KvDtype, codes: Codes, scales: Scales) -> int | None:
        values = torch.cat([_tensor(array.copy(), dtype).float() for array in rows])
        finite = torch.isfinite(values).all(dim=1)
        if not finite.all():
            return int((~finite).nonzero()[0])
        largest = values.abs().amax(dim=1)
        largest_code = torch.full_like(largest, self.largest_code)
        smallest_scale = torch.full_like(largest, self.smallest_scale)
        scale = largest / largest_code
        factor = largest_code / largest
        at_bound = scale < smallest_scale
        scale = torch.where(at_bound, smallest_scale, scale)
        factor = torch.where(at_bound, torch.ones_like(largest) / smallest_scale, factor)
        zero = largest == 0
        scale = torch.where(zero, torch.ones_like(scale), scale)
        factor = torch.where(zero, torch.ones_like(factor), factor)
        scaled = (values * factor[:, None]).clamp(-self.largest_code, self.largest_code)
        codes[:] = self._codes(scaled).numpy()
        scales[:] = scale.numpy()
        return None

    def _decode_rows(self, codes: Codes, scales: Scales, dtype: KvDtype, rows: Rows) -> bool:
        values = self._values(torch.from_numpy(codes.copy()))
        if values is None:
            return False
        target = _TORCH_DTYPES[dtype]
        finite = torch.finfo(target)
        values = (values * torch.from_numpy(scales.copy())[:, None]).clamp(finite.min, finite.max)
        restored = values.to(target)
        start = 0
        for array in rows:
            _tensor(array, dtype).copy_(restored[start : start + len(array)])
            start += len(array)
        return True

    @abstractmethod
    def _codes(self, scaled: torch.Tensor) -> torch.Tensor:
        """uint8 codes of fp32 values of at most the largest code."""

    @abstractmethod
    def _values(self, codes: torch.Tensor) -> torch.Tensor | None:
        """fp32 values of uint8 codes; None if a code stands for no value."""


class ReferenceInt8(ReferenceRows, Int8):
    def _codes(self, scaled: torch.Tensor) -> torch.Tensor:
        return scaled.round().to(torch.int8).view(torch.uint8)

    def _values(self, codes: torch.Tensor) -> torch.Tensor | None:
        values = codes.view(torch.int8).float()
        return None if (values < -self.largest_code).any() else values


class ReferenceFp8(ReferenceRows, Fp8):
    def _codes(self, scaled: torch.Tensor) -> torch.Tensor:
        return scaled.to(torch.float8_e4m3fn).view(torch.uint8)

    def _values(self, codes: torch.Tensor) -> torch.Tensor | None:
        values = codes.view(torch.float8_e4m3fn).float()
        return None if values.isnan().any() else values


def _tensor(array: npt.NDArray[np.generic], dtype: KvDtype) -> torch.Tensor:
    """The same memory as a float tensor; torch takes signed integers only, numpy has no bf16."""
    signed = array.view(np.dtype(f"i{dtype.itemsize}"))
    return torch.from_numpy(signed).view(_TORCH_DTYPES[dtype])
