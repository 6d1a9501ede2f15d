"""How many tokens of a prompt are kept. Pure.

The budget is that of the whole prompt, never of a chunk, and the same for every layer: both sides compute it from the
prompt's length alone, so that decode reserves no more than it will hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kvferry_contract.config import TransferConfig
from kvferry_runtime.codec.base import ScaleScope
from kvferry_runtime.layout import KvDtype, LayerShape


@dataclass(frozen=True, slots=True)
class SparseMethod:
    """No `codec.base.Codec`: what it leaves out is chosen for a whole prompt, and what it keeps has another place.

    kept_percent: of the prompt's tokens.
    """

    lossy: ClassVar[bool] = True
    scale_scope: ClassVar[ScaleScope] = ScaleScope.NONE

    name: str
    wire_id: int
    kept_percent: int

    def supports(self, shape: LayerShape) -> str | None:
        """None if layers of this kind can be carried, else the reason."""
        if shape.dtype is KvDtype.UINT8:
            return "opaque bytes (uint8) cannot be compared, so no token can be chosen; use none or lossless"
        return None


SPARSE50 = SparseMethod("sparse50", 6, 50)
SPARSE75 = SparseMethod("sparse75", 7, 25)

SPARSE: Mapping[str, SparseMethod] = {method.name: method for method in (SPARSE50, SPARSE75)}
"""By the name in the object."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one transfer keeps. first, last: tokens that are always kept at the prompt's two ends."""

    method: SparseMethod
    first: int
    last: int

    def kept(self, tokens: int) -> int:
        """Tokens kept in every layer of a prompt of `tokens` tokens: the share, rounded up, but at least both ends."""
        share = -(-tokens * self.method.kept_percent // 100)
        return min(tokens, max(share, self.first + self.last))

    def evicts(self, tokens: int) -> bool:
        """False for prompts so short that every token is kept: those are sent as they are."""
        return self.kept(tokens) < tokens


def of(transfer: TransferConfig) -> Budget | None:
    """The budget that an object asks for, None where its method leaves no token out."""
    method = SPARSE.get(transfer.method.value)
    return None if method is None else Budget(method, transfer.keep_exact_first, transfer.keep_exact_last)
