"""Bounds that a field's type carries, as written in the CRD. `parse` enforces them, tests compare them with the CRD."""

from __future__ import annotations

import re
from dataclasses import dataclass

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
QUALIFIED_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
DECIMAL = r"^[0-9]{1,6}(\.[0-9]{1,6})?$"


@dataclass(frozen=True, slots=True)
class Range:
    """A whole number within both ends."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Text:
    """A string of at most `most` characters; `wants` says in words what `pattern` lets through."""

    most: int
    pattern: str = ""
    wants: str = ""
    least: int = 0

    def fits(self, value: str) -> bool:
        # `$` would let a trailing line break through, which the API server's regular expressions do not
        return not self.pattern or re.fullmatch(self.pattern.removeprefix("^").removesuffix("$"), value) is not None


@dataclass(frozen=True, slots=True)
class Items:
    """A list of at most `most` items, no two with the same value of the field `key`, or no two alike if `unique`."""

    most: int
    key: str = ""
    unique: bool = False


@dataclass(frozen=True, slots=True)
class Bytes:
    """A Kubernetes quantity, read as a whole number of bytes within both ends."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal number written as text (floats in a resource do not survive every client), within both ends."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Quantities:
    """A map of resource names to Kubernetes quantities, kept as text."""

    most: int


@dataclass(frozen=True, slots=True)
class Open:
    """A part whose fields belong to Kubernetes and are not looked into while reading."""
