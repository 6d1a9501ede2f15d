"""From logits to one token, from nothing but the row, the settings, the seed and the index of the token.

Token `index` of a completion is drawn with one number derived from (seed, index). No state is kept, so whichever
engine computes the token, in whichever batch, draws the same one.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Sampling:
    """temperature 0 is greedy. top_k 0 and top_p 1 keep everything. seed: any 64-bit number."""

    temperature: float
    top_p: float
    top_k: int
    seed: int


def sample(logits: npt.NDArray[np.float32], sampling: Sampling, index: int) -> int:
    """The token at `index` of the completion; ties go to the lowest id."""
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    order = np.argsort(-logits, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    # below the likeliest first, then scaled: so the least temperature makes the others impossible, never a NaN
    with np.errstate(over="ignore"):
        below = (logits[order].astype(np.float64) - logits[order[0]]) / sampling.temperature
    weights = np.exp(below)
    cumulative = np.cumsum(weights)
    if sampling.top_p < 1:
        # the smallest set of the likeliest tokens whose probability reaches top_p, at least one
        kept = int(np.searchsorted(cumulative, sampling.top_p * cumulative[-1])) + 1
        cumulative = cumulative[:kept]
    drawn = int(np.searchsorted(cumulative, _uniform(sampling.seed, index) * cumulative[-1], side="right"))
    return int(order[min(drawn, len(cumulative) - 1)])


def _uniform(seed: int, index: int) -> float:
    """A number in [0, 1), the same for the same arguments everywhere."""
    digest = hashlib.blake2b(struct.pack("<qq", seed, index), digest_size=8).digest()
    return float(int.from_bytes(digest, "little") >> 11) * 2.0**-53
