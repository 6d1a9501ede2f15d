"""What a method costs and saves on this machine, and in which order methods are preferred. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

LADDER: Sequence[str] = ("none", "lossless", "int8", "fp8", "k8v4", "fp4")
"""From exact to coarse, by the divergence of the next tokens that each was measured to cause (docs/benchmarks.md).
Methods that leave out tokens are not here: they are a choice for a whole prompt, not for one chunk of it."""

EXACT: Sequence[str] = ("none", "lossless")

_WEIGHT = 0.25
"""Of the newest chunk in a running mean: a few chunks outweigh what was believed before."""


@dataclass(frozen=True, slots=True)
class MethodSpeed:
    """ratio: wire bytes for each raw byte. encode, decode: raw bytes a second, of one thread."""

    method: str
    ratio: float
    encode: float
    decode: float

    def observed(self, raw_bytes: int, wire_bytes: int, seconds: float) -> MethodSpeed:
        """After one more chunk was encoded in `seconds`: running means over about the last eight chunks."""
        if raw_bytes <= 0 or seconds <= 0:
            return self
        mean_seconds = (1 - _WEIGHT) / self.encode + _WEIGHT * seconds / raw_bytes
        ratio = (1 - _WEIGHT) * self.ratio + _WEIGHT * wire_bytes / raw_bytes
        return replace(self, ratio=ratio, encode=1 / mean_seconds)


def ordered(methods: Iterable[str]) -> list[str]:
    """Those that `auto` can choose among, exact ones first."""
    wanted = set(methods)
    return [method for method in LADDER if method in wanted]
