"""`ScaledRows` methods in torch: slow, obvious, and the oracle for every other implementation's bytes.

Divisions have tensors on both sides (`127.0 / tensor` is a reciprocal times 127 in torch), and saturation is explicit.
"""

from __future__ import annotations

from abc import abstractmethod

import torch

from kvferry_runtime.codec.base import ChunkShape, Rows
from kvferry_runtime.codec.scaled.format import Codes, ScaledRows, Scales
from kvferry_runtime.codec.scaled.scopes import largest_in_scope, spread_over_rows
from kvferry_runtime.codec.torch_rows import TORCH_DTYPES, float_tensor, scatter
from kvferry_runtime.layout import KvDtype


class ReferenceRows(ScaledRows):
    """Gathers all rows into one fp32 tensor [rows, head_dim]."""

    def _encode_rows(self, rows: Rows, shape: ChunkShape, codes: Codes, scales: Scales) -> int | None:
        values = torch.cat([float_tensor(array.copy(), shape.dtype).float() for array in rows])
        finite = torch.isfinite(values).all(dim=1)
        if not finite.all():
            return int((~finite).nonzero()[0])
        of_rows = values.abs().amax(dim=1).numpy()
        largest = torch.from_numpy(largest_in_scope(of_rows, self.scale_scope, shape))
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
        factor = torch.from_numpy(spread_over_rows(factor.numpy(), self.scale_scope, shape).copy())
        scaled = (values * factor[:, None]).clamp(-self.largest_code, self.largest_code)
        codes[:] = self._codes(scaled).numpy()
        scales[:] = scale.numpy()
        return None

    def _decode_rows(self, codes: Codes, scales: Scales, dtype: KvDtype, rows: Rows) -> bool:
        values = self._values(torch.from_numpy(codes.copy()))
        if values is None:
            return False
        finite = torch.finfo(TORCH_DTYPES[dtype])
        values = (values * torch.from_numpy(scales.copy())[:, None]).clamp(finite.min, finite.max)
        scatter(values, dtype, rows)
        return True

    @abstractmethod
    def _codes(self, scaled: torch.Tensor) -> torch.Tensor:
        """uint8 codes of fp32 values of at most the largest code."""

    @abstractmethod
    def _values(self, codes: torch.Tensor) -> torch.Tensor | None:
        """fp32 values of uint8 codes; None if a code stands for no value."""
