"""Sparse transfers: which tokens the sender leaves out, and where the receiver puts the others.

Both are made for one transfer and used by the agent's thread alone.
"""

from __future__ import annotations

import numpy as np

from kvferry_runtime.agent.base import KvMemory, ScoredMemory
from kvferry_runtime.agent.gather import chunk_rows
from kvferry_runtime.codec.base import ChunkShape, Payload, Rows
from kvferry_runtime.codec.sparse.budget import Budget
from kvferry_runtime.codec.sparse.payload import KeptTokens, pack, read_kept, unpack
from kvferry_runtime.codec.sparse.placement import Placed, Placement
from kvferry_runtime.codec.sparse.scores import from_keys
from kvferry_runtime.codec.sparse.selection import Mask, Scores, select
from kvferry_runtime.layout import KvLayout


class Eviction:
    """At the sender: a `KvMemory` that knows which tokens go. memory: of a prompt of `tokens` tokens, dense.

    A layer is looked at when its first chunk is encoded, and must be final for the whole prompt by then.
    """

    def __init__(self, budget: Budget, layout: KvLayout, memory: KvMemory, tokens: int) -> None:
        self.rows = memory.rows
        self._budget = budget
        self._layout = layout
        self._memory = memory
        self._tokens = tokens
        self._masks: dict[int, Mask] = {}

    def encode(self, layers: range, token_start: int, token_stop: int, out: Payload) -> int:
        """Write the payload of this chunk to the front of `out` and return its length.

        Raises:
            LayoutError: the engine's memory is not as announced, or `out` is too small.
            CodecRefused: the layer's rows are opaque bytes, and the engine gives no scores.
        """
        shape = ChunkShape.of(self._layout.shape(layers.start), len(layers), token_stop - token_start)
        rows = chunk_rows(self._memory, self._layout.shape(layers.start), layers, token_start, token_stop)
        masks = [self._mask(layer) for layer in layers]
        kept = KeptTokens(
            mask=np.stack([mask[token_start:token_stop] for mask in masks]),
            before=np.array([np.count_nonzero(mask[:token_start]) for mask in masks], np.int64),
        )
        return pack(rows, shape, kept, out)

    def _mask(self, layer: int) -> Mask:
        if layer not in self._masks:
            kept = self._budget.kept(self._tokens)
            self._masks[layer] = select(self._scores(layer), kept, self._budget.first, self._budget.last)
        return self._masks[layer]

    def _scores(self, layer: int) -> Scores:
        if isinstance(self._memory, ScoredMemory):
            return self._memory.scores(layer)
        return from_keys(self._memory.rows(layer, 0, 0, self._tokens), self._layout.shape(layer))


class Compaction:
    """At the receiver: a `KvMemory`, addressed by the ranks of kept tokens, that knows where each chunk's belong.

    memory: has room for the kept tokens of a prompt of `tokens` tokens, and holds no others.
    """

    def __init__(self, budget: Budget, layout: KvLayout, memory: KvMemory, tokens: int) -> None:
        self.rows = memory.rows
        self.kept = budget.kept(tokens)
        self._layout = layout
        self._memory = memory
        self._tokens = tokens
        self.restart()

    def restart(self) -> None:
        """Everything will come once more."""
        self._placement = Placement(self._tokens, self.kept, self._layout.layers)

    def decode(self, payload: Payload, layers: range, token_start: int, token_stop: int) -> None:
        """Write the kept rows of this chunk to their places.

        Raises:
            CorruptPayload: it does not decode, or its tokens cannot lie where it says; nothing was written.
            LayoutError: the engine's memory is not as announced.
        """
        shape = ChunkShape.of(self._layout.shape(layers.start), len(layers), token_stop - token_start)
        kept = read_kept(payload, shape)
        places = [(int(before), int(count)) for before, count in zip(kept.before, kept.counts, strict=True)]
        for layer, (before, count) in zip(layers, places, strict=True):
            self._placement.admit(layer, Placed(token_start, token_stop, before, count))
        sinks: list[Rows] = [
            chunk_rows(self._memory, self._layout.shape(layer), range(layer, layer + 1), before, before + count)
            for layer, (before, count) in zip(layers, places, strict=True)
            if count
        ]
        unpack(payload, shape, kept, [array for rows in sinks for array in rows])

    def check(self) -> None:
        """At the end. Raises CorruptPayload: not every layer has exactly its kept tokens."""
        self._placement.check()
