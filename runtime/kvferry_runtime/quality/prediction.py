"""What a model says after a context: the tokens that really follow, and greedily chosen ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvferry_runtime.engine.reference import attention
from kvferry_runtime.engine.reference.kv import RequestKv
from kvferry_runtime.engine.reference.model import Model
from kvferry_runtime.engine.reference.runner import DecodeRow, Runner


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens behind a context of which `kv` holds `cached` tokens: a pass of one row (see `attention.Pass`)."""

    kv: RequestKv
    cached: int

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        self.kv.store(layer, self.cached, key[0], value[0])
        return attention.causal(self.kv, layer, self.cached, query, scale)


def forced(model: Model, kv: RequestKv, cached: int, position: int, tokens: Sequence[int]) -> torch.Tensor:
    """Log-probabilities [tokens, vocabulary] of what follows each of `tokens`, the first of which is at `position`."""
    running = Continuation(kv, cached)
    with torch.inference_mode():
        output = model.module(
            input_ids=torch.tensor([list(tokens)], device=model.device),
            position_ids=torch.arange(position, position + len(tokens), device=model.device)[None],
            use_cache=False,
            **{attention.ARGUMENT: running},
        )
        return torch.log_softmax(output.logits[0].float(), dim=-1).cpu()


def greedy(
    runner: Runner, caches: Sequence[tuple[RequestKv, int]], position: int, first: int, count: int
) -> list[list[int]]:
    """`count` tokens for each cache (and what it holds), all after the same context that ends before `position`.

    first: the token at `position`, which is in no cache. Caches are computed side by side, and none sees another.
    """
    texts: list[list[int]] = [[] for _ in caches]
    for step in range(count):
        rows = [
            DecodeRow(kv, text[-1] if text else first, position + step, cached + step)
            for (kv, cached), text in zip(caches, texts, strict=True)
        ]
        for text, logits in zip(texts, runner.decode(rows), strict=True):
            text.append(int(np.argmax(logits)))
    return texts
