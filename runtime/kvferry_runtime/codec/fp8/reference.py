"""Methods `fp8`, `fp8-head`, `fp8-tensor` in torch: slow, obvious, the oracle for each other implementation's bytes."""

from __future__ import annotations

import torch

from kvferry_runtime.codec.fp8.format import Fp8, Fp8Head, Fp8Tensor
from kvferry_runtime.codec.scaled.reference import ReferenceRows


class ReferenceFp8(ReferenceRows, Fp8):
    def _codes(self, scaled: torch.Tensor) -> torch.Tensor:
        return scaled.to(torch.float8_e4m3fn).view(torch.uint8)

    def _values(self, codes: torch.Tensor) -> torch.Tensor | None:
        values = codes.view(torch.float8_e4m3fn).float()
        return None if values.isnan().any() else values


class ReferenceFp8Head(ReferenceFp8, Fp8Head):
    """A scale for each head."""


class ReferenceFp8Tensor(ReferenceFp8, Fp8Tensor):
    """A scale for each layer and part."""
