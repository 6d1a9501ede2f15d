"""Rates of links, and what a token bucket (tc-tbf) needs to keep one. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvferry_runtime.errors import SettingsError

_FACTORS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(kbit|mbit|gbit)")

LARGEST_PACKET = 64 << 10
"""What the kernel hands to a queue at once (GSO); a bucket that holds less has to cut every packet."""
REFILL_SECONDS = 2e-3
"""A bucket must hold what the link carries between two looks at the clock, else it never reaches its rate."""
QUEUE_SECONDS = 20e-3
"""What may wait in front of the link: enough for TCP to fill it, and not seconds of it."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Bits per second, headers included."""

    bits: float

    def __post_init__(self) -> None:
        if not 1e5 <= self.bits <= 1e11:
            raise SettingsError(f"rate {self.bits:g} bit/s: allowed are 100kbit to 100gbit")

    @property
    def bytes_per_second(self) -> float:
        return self.bits / 8

    @property
    def text(self) -> str:
        """As `parse` and tc read it, and as figures are named: 100mbit, 1gbit."""
        for unit, factor in reversed(_FACTORS.items()):
            if self.bits >= factor:
                return f"{self.bits / factor:g}{unit}"
        raise AssertionError("a rate is at least a kilobit")

    def bucket(self) -> tuple[int, int]:
        """Bytes of tc-tbf's `burst` and `limit` (the queue with what the bucket holds).

        The burst is what may pass at once after a pause, so it is also how much a transfer gains over the rate: kept as
        small as the packets and the clock allow.
        """
        burst = max(2 * LARGEST_PACKET, round(self.bytes_per_second * REFILL_SECONDS))
        return burst, burst + max(2 * LARGEST_PACKET, round(self.bytes_per_second * QUEUE_SECONDS))


def parse(text: str) -> Rate:
    """Of "100mbit", "1gbit". Raises SettingsError."""
    match = _RATE.fullmatch(text.strip().lower())
    if match is None:
        raise SettingsError(f"rate {text!r}: write a number and one of {', '.join(_FACTORS)}, e.g. 250mbit")
    return Rate(float(match[1]) * _FACTORS[match[2]])
