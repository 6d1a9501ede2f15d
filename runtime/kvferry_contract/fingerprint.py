"""What a prefill and a decode must agree on before a byte moves, in clear, so that a refusal can name the field."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which two fingerprints differ; an absent field reads as the empty string."""

    field: str
    ours: str
    theirs: str

    def __str__(self) -> str:
        return f"{self.field}: {self.ours!r} here, {self.theirs!r} at the peer"


def compare(ours: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[Difference, ...]:
    """All differences, sorted by field."""
    return tuple(
        Difference(field, ours.get(field, ""), theirs.get(field, ""))
        for field in sorted(set(ours) | set(theirs))
        if ours.get(field, "") != theirs.get(field, "")
    )


def digest(parts: Mapping[str, str]) -> str:
    """16 hexadecimal digits, equal where `compare` finds no difference; empty without parts."""
    text = json.dumps({field: value for field, value in parts.items() if value}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16] if parts else ""
