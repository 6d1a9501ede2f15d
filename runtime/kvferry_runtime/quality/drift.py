"""How far two predictions of the same tokens are apart. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(slots=True)
class Drift:
    """Sums over all windows of one method.

    raw_bytes, wire_bytes: of the carried contexts. equal_tokens: of greedy texts, before their first difference.
    """

    tokens: int = 0
    kl: float = 0.0
    same_top: int = 0
    surprise: float = 0.0
    greedy_tokens: int = 0
    equal_tokens: int = 0
    greedy_texts: int = 0
    equal_texts: int = 0
    raw_bytes: int = 0
    wire_bytes: int = 0

    def predicted(self, exact: torch.Tensor, found: torch.Tensor, truth: torch.Tensor) -> None:
        """Log-probabilities [tokens, vocabulary] without and with the method, and the tokens that came [tokens].

        Kullback-Leibler divergence of the exact distribution from the found one; exactly 0 for equal ones.
        """
        exact, found = exact.double(), found.double()
        self.tokens += len(truth)
        self.kl += float((exact.exp() * (exact - found)).sum())
        self.same_top += int((exact.argmax(dim=-1) == found.argmax(dim=-1)).sum())
        self.surprise -= float(found.gather(1, truth[:, None]).sum())

    def answered(self, exact: Sequence[int], found: Sequence[int]) -> None:
        """Greedy texts of equal length without and with the method."""
        equal = next((index for index, pair in enumerate(zip(exact, found, strict=True)) if pair[0] != pair[1]), None)
        self.greedy_texts += 1
        self.greedy_tokens += len(exact)
        self.equal_texts += equal is None
        self.equal_tokens += len(exact) if equal is None else equal

    @property
    def mean_kl(self) -> float:
        """Nats per token."""
        return self.kl / self.tokens

    @property
    def top1(self) -> float:
        """Share of the tokens whose likeliest prediction is the same."""
        return self.same_top / self.tokens

    @property
    def perplexity(self) -> float:
        return math.exp(self.surprise / self.tokens)

    @property
    def size(self) -> float:
        """Wire bytes for each raw byte."""
        return self.wire_bytes / self.raw_bytes
