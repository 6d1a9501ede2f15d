"""How a prompt is cut into forward passes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

PREFILL_CHUNK = 256
"""Tokens of one prefill pass: long enough for matrix products at full speed, short enough that decode steps of other
requests come between. Part of the definition of an answer's bits: never a setting."""


@dataclass(frozen=True, slots=True)
class Span:
    """Positions `start` to `stop` of a prompt; complete: the prompt ends there."""

    start: int
    stop: int
    complete: bool


def next_span(start: int, tokens: int) -> Span:
    """The chunk that begins at `start`, of a prompt of so many tokens."""
    stop = min(start + PREFILL_CHUNK, tokens)
    return Span(start, stop, stop == tokens)
