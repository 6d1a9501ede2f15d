"""Attention of one forward pass over each request's own KV, plugged into transformers' models.

transformers hands every layer's query, key and value to the attention function that the configuration names. Ours
passes them to the pass that is running, which travels as a keyword argument of the model's call, so there is no global
state. The pass stores key and value in the cache of the request, and only then attends: in prefill the layer's KV is
announced before its attention is computed, which is the earliest moment at which it is final.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvferry_runtime.engine.reference.kv import RequestKv
from kvferry_runtime.engine.reference.observation import AttentionMass
from kvferry_runtime.errors import SettingsError

NAME = "kvferry"
ARGUMENT = "kvferry_pass"
"""By this keyword argument of the model's call the pass reaches `_attention`."""
QUERY_TILE = 128
"""Rows of a prefill chunk that attend at once: keys after the last of them are not looked at."""
_UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")


class Pass(Protocol):
    """One forward pass. Shapes: query [rows, heads, tokens, dim], key and value [rows, kv_heads, tokens, dim]."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Store the new keys and values of this layer and return [rows, tokens, heads, dim]."""
        ...


@dataclass(frozen=True, slots=True)
class PrefillPass:
    """Positions `start` to `stop` of one request, in one row.

    layer_final: called with each layer once its KV is. observed: takes note of the attention before that, for prompts
    that will be sent sparsely.
    """

    kv: RequestKv
    start: int
    stop: int
    layer_final: Callable[[int], None]
    observed: AttentionMass | None

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        self.kv.store(layer, self.start, key[0], value[0])
        if self.observed is not None:
            self.observed.observe(layer, self.start, query, self.kv.view(layer, self.stop)[0], scale)
        self.layer_final(layer)
        return causal(self.kv, layer, self.start, query, scale)


@dataclass(frozen=True, slots=True)
class DecodePass:
    """One token of each request; rows beyond the requests are padding and come out as zeros.

    cached: tokens that each cache holds before. It is the token's position, unless tokens before it were evicted.
    """

    kvs: Sequence[RequestKv]
    cached: Sequence[int]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        rows, heads, _, dim = query.shape
        out = query.new_zeros(rows, 1, heads, dim)
        # queries that share a KV head become its query tokens: nothing is repeated
        grouped = query.reshape(rows, 1, key.shape[1], heads // key.shape[1], dim)
        for row, (kv, cached) in enumerate(zip(self.kvs, self.cached, strict=True)):
            kv.store(layer, cached, key[row], value[row])
            keys, values = kv.view(layer, cached + 1)
            out[row, 0] = scaled_dot_product_attention(grouped[row], keys, values, scale=scale).view(heads, dim)
        return out


def causal(kv: RequestKv, layer: int, cached: int, query: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Attention of tokens that follow each other, whose keys and values are in `kv` behind `cached` others.

    query: [1, heads, tokens, dim]. Returns [1, tokens, heads, dim].
    """
    tokens = query.shape[2]
    out = torch.empty_like(query)
    for first in range(0, tokens, QUERY_TILE):
        last = min(first + QUERY_TILE, tokens)
        seen = cached + last
        keys, values = kv.view(layer, seen)
        position = torch.arange(cached + first, seen, device=query.device)
        visible = torch.arange(seen, device=query.device) <= position[:, None]
        out[:, :, first:last] = scaled_dot_product_attention(
            query[:, :, first:last], keys, values, attn_mask=visible, scale=scale, enable_gqa=True
        )
    return out.transpose(1, 2)


def register() -> None:
    """Make `NAME` known to transformers. Idempotent."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _no_mask)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    for name in _UNSUPPORTED:
        if options.get(name) is not None:
            raise SettingsError(f"the model's attention uses {name}, which the reference engine does not compute")
    running: Pass = options[ARGUMENT]
    return running.attend(module.layer_idx, query, key, value, scaling), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Each pass masks for itself."""
