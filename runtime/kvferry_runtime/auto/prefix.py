"""The last rung, exact like the first: decode computes the end of a prompt itself, before the link brings it. Pure.

A transfer whose chunks go out tokens first (all layers of some tokens, then of the next ones) can be ended early: what
was sent is a prefix of the prompt in every layer, from which decode's engine goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GAIN = 0.2
"""Of the remaining time that must be won: a prediction for two machines is not exact, and prefill's work is lost."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A place at which the transfer could end. raw_bytes: of the chunks before it that were not sent yet."""

    tokens: int
    raw_bytes: int


def best_ending(
    endings: Sequence[Ending], tokens: int, raw_bytes: int, raw_bytes_per_second: float, tokens_per_second: float
) -> Ending | None:
    """Where to end, None if everything should be sent.

    Args:
        tokens: of the whole prompt.
        raw_bytes: of all chunks that were not sent yet.
        raw_bytes_per_second: at which the link carries them, encoded by the smallest method allowed.
        tokens_per_second: at which decode would compute the end of the prompt.
    """

    def seconds(ending: Ending) -> float:
        return ending.raw_bytes / raw_bytes_per_second + (tokens - ending.tokens) / tokens_per_second

    best = min(endings, key=seconds, default=None)
    return best if best is not None and seconds(best) < (1 - GAIN) * raw_bytes / raw_bytes_per_second else None
