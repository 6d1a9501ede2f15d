"""Method `int8` in torch: slow, obvious, and the oracle for every other implementation's bytes."""

from __future__ import annotations

import torch

from kvferry_runtime.codec.int8.format import Int8
from kvferry_runtime.codec.scaled.reference import ReferenceRows


class ReferenceInt8(ReferenceRows, Int8):
    def _codes(self, scaled: torch.Tensor) -> torch.Tensor:
        return scaled.round().to(torch.int8).view(torch.uint8)

    def _values(self, codes: torch.Tensor) -> torch.Tensor | None:
        values = codes.view(torch.int8).float()
        return None if (values < -self.largest_code).any() else values
