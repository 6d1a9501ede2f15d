"""What a prompt's last queries look at: the scores by which a sparse transfer chooses its tokens.

The last queries of a prompt stand for the queries to come: the observation window of SnapKV (arXiv 2404.14469). Their
attention is computed here once more, from query and key alone, since fused kernels do not give their weights away.
"""

from __future__ import annotations

import torch

from kvferry_runtime.codec.sparse.scores import from_attention
from kvferry_runtime.codec.sparse.selection import Scores
from kvferry_runtime.layout import KvLayout

OBSERVED_QUERIES = 64
"""Enough that the sum is no accident of one token, few enough to cost a few per cent of the attention itself."""


class AttentionMass:
    """Of one prompt of `tokens` tokens. Written by the engine's thread; a layer's scores may be read by another one
    as soon as the layer is announced as final."""

    def __init__(self, layout: KvLayout, tokens: int, device: torch.device) -> None:
        shape = layout.shapes[0]
        self._layout = layout
        self._tokens = tokens
        self._mass = torch.zeros(len(layout.shapes), shape.heads, tokens, dtype=torch.float32, device=device)

    def observe(self, layer: int, start: int, query: torch.Tensor, keys: torch.Tensor, scale: float | None) -> None:
        """Add what the observed ones of these queries pay to each key.

        Args:
            start: position of the first query.
            query: [1, heads, queries, head_dim]. keys: [1, kv_heads, start + queries, head_dim], all so far.
            scale: of the logits, None for 1 / √head_dim.
        """
        stop = start + query.shape[2]
        first = max(start, self._tokens - OBSERVED_QUERIES)
        if first >= stop:
            return
        kv_heads, head_dim = keys.shape[1], keys.shape[3]
        observed = query[0, :, first - start :].float()
        logits = observed.reshape(kv_heads, -1, head_dim) @ keys[0].float().transpose(1, 2)
        logits *= head_dim**-0.5 if scale is None else scale
        logits = logits.view(kv_heads, -1, stop - first, stop)
        position = torch.arange(first, stop, device=query.device)
        logits.masked_fill_(torch.arange(stop, device=query.device) > position[:, None], float("-inf"))
        self._mass[layer - self._layout.first_layer, :, :stop] += logits.softmax(dim=-1).sum(dim=(1, 2))

    def of(self, layer: int) -> torch.Tensor:
        """[kv_heads, tokens] of this global layer, once the whole prompt was observed."""
        return self._mass[layer - self._layout.first_layer]

    def scores(self, layer: int) -> Scores:
        """Of this global layer's tokens, once the whole prompt was observed."""
        return from_attention(self.of(layer).cpu().numpy())
