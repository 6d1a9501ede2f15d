"""Kubernetes quantities: `256Mi`, `1.5Gi`, `100m`, `2`."""

from __future__ import annotations

import re
from decimal import Decimal

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

_SCALE = {
    "m": Decimal("0.001"),
    "": Decimal(1),
    **{suffix: Decimal(10) ** (3 * power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1 << (10 * power)) for power, suffix in enumerate("KMGTPE", start=1)},
}
_FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?", re.ASCII)
MAX_LENGTH = 32


class QuantityError(ValueError):
    """Not a quantity, or not one that can be used here."""


def parse(raw: object) -> Decimal:
    """The exact value of a quantity given as text or whole number.

    Raises:
        QuantityError: neither of both, negative, or not of the form number plus suffix.
    """
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise QuantityError("must be a quantity such as 256Mi")
    text = str(raw) if isinstance(raw, str) or abs(raw) < 10**MAX_LENGTH else "?"
    match = _FORM.fullmatch(text)
    if match is None or len(text) > MAX_LENGTH:
        raise QuantityError("must be a quantity such as 256Mi")
    return Decimal(match[1]) * _SCALE[match[2] or ""]


def to_bytes(raw: object) -> int:
    """The value as a whole number of bytes.

    Raises:
        QuantityError: not a quantity, or a fraction of a byte.
    """
    value = parse(raw)
    if value != int(value):
        raise QuantityError("must be a whole number of bytes")
    return int(value)


def from_bytes(count: int) -> str:
    """The shortest exact form with a binary suffix: 268435456 → `256Mi`."""
    for power in range(6, 0, -1):
        unit = 1 << (10 * power)
        if count and count % unit == 0:
            return f"{count // unit}{'KMGTPE'[power - 1]}i"
    return str(count)
