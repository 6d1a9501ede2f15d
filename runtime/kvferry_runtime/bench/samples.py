"""Repeated transfers over a link of known rate, and what they say. Pure but for the transfers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from kvferry_runtime.bench.pair import Transfer
from kvferry_runtime.bench.rate import Rate

MIN_COUNT, MAX_COUNT = 3, 9


@dataclass(frozen=True, slots=True)
class Sample:
    """goodput: median, bytes of raw KV per second. wire_share: bytes on the wire for each raw byte. n: of transfers."""

    goodput: float
    wire_share: float
    n: int


def count(seconds_each: float, budget_seconds: float) -> int:
    """How often something of this length is measured within a budget."""
    return max(MIN_COUNT, min(MAX_COUNT, int(budget_seconds / seconds_each)))


def tokens_for(rate: Rate, seconds: float, bytes_per_token: int, most: int) -> int:
    """A prompt whose raw KV takes about so long at this rate, of at most `most` tokens."""
    return max(1, min(most, int(rate.bytes_per_second * seconds / bytes_per_token)))


def sample(move: Callable[[], Transfer], times: int, rate: Rate) -> Sample:
    """So many transfers, after one that does not count: it opens sessions and warms caches."""
    move()
    transfers = [move() for _ in range(times)]
    goodput = median(transfer.raw_bytes / unaided_seconds(transfer, rate) for transfer in transfers)
    return Sample(goodput, transfers[-1].wire_bytes / transfers[-1].raw_bytes, times)


def unaided_seconds(transfer: Transfer, rate: Rate) -> float:
    """As if the link's bucket had been empty at its beginning: what a full one lets pass at once is no speed."""
    burst, _ = rate.bucket()
    return transfer.seconds + min(burst, transfer.wire_bytes) / rate.bytes_per_second
