"""Sparse transfers: which tokens the sender leaves out, and where the receiver puts the others.

Both are made for one transfer and used by the agent's thread alone, but for `Eviction.choose`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from kvferry_runtime.agent.base import KvMemory, ScoredMemory
from kvferry_runtime.agent.gather import chunk_rows
from kvferry_runtime.agent.in_flight import InFlight
from kvferry_runtime.codec.base import ChunkShape, Payload
from kvferry_runtime.codec.rows import joined_rows
from kvferry_runtime.codec.sparse.budget import Budget
from kvferry_runtime.codec.sparse.payload import KeptTokens, pack, read_kept, unpack
from kvferry_runtime.codec.sparse.placement import Placed, Placement
from kvferry_runtime.codec.sparse.selection import Mask, Scores, select
from kvferry_runtime.layout import KvLayout

Outcome = TypeVar("Outcome")


class Eviction:
    """At the sender: a `KvMemory` that knows which tokens go. memory: of a prompt of `tokens` tokens, dense.

    A layer is looked at when its first chunk is encoded, and must be final for the whole prompt by then. Of a long
    prompt that takes longer than a chunk, and may be done in another thread: in_flight counts those that are at it.
    """

    def __init__(self, budget: Budget, layout: KvLayout, memory: KvMemory, tokens: int) -> None:
        self.rows = memory.rows
        self.memory = memory
        self.tokens = tokens
        self.in_flight = InFlight()
        self._budget = budget
        self._layout = layout
        self._masks: dict[int, Mask] = {}
        self._choosing = threading.Lock()

    def last_word(self, on_done: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        """`on_done`, called once no other thread looks at the memory any more."""
        return lambda outcome: self.in_flight.close(lambda: on_done(outcome))

    def is_chosen(self, layers: range) -> bool:
        """Whether `encode` has nothing left to choose."""
        return all(layer in self._masks for layer in layers)

    def choose(self, layers: range) -> None:
        """Choose the tokens of these layers. From any thread.

        Raises:
            LayoutError: the engine's memory is not as announced.
            CodecRefused: the layer's rows are opaque bytes, and the engine gives no scores.
        """
        with self._choosing:
            for layer in layers:
                if layer not in self._masks:
                    kept = self._budget.kept(self.tokens)
                    self._masks[layer] = select(self._scores(layer), kept, self._budget.first, self._budget.last)

    def encode(self, layers: range, token_start: int, token_stop: int, out: Payload) -> int:
        """Write the payload of this chunk to the front of `out` and return its length.

        Raises:
            LayoutError: the engine's memory is not as announced, or `out` is too small.
            CodecRefused: the layer's rows are opaque bytes, and the engine gives no scores.
        """
        shape = ChunkShape.of(self._layout.shape(layers.start), len(layers), token_stop - token_start)
        rows = chunk_rows(self.memory, self._layout.shape(layers.start), layers, token_start, token_stop)
        self.choose(layers)
        masks = [self._masks[layer] for layer in layers]
        kept = KeptTokens(
            mask=np.stack([mask[token_start:token_stop] for mask in masks]),
            before=np.array([np.count_nonzero(mask[:token_start]) for mask in masks], np.int64),
        )
        return pack(rows, shape, kept, out)

    def _scores(self, layer: int) -> Scores:
        if isinstance(self.memory, ScoredMemory):
            return self.memory.scores(layer)
        # numba takes seconds and 190 MB: only for engines that do not know what is looked at
        from kvferry_runtime.codec.sparse.host_scores import from_keys

        return from_keys(self.memory.rows(layer, 0, 0, self.tokens), self._layout.shape(layer))


@dataclass(frozen=True, slots=True)
class Admitted:
    """A chunk whose payload is sound. places: of the kept tokens of each layer in the receiver's memory."""

    shape: ChunkShape
    kept: KeptTokens
    places: list[range]


class Compaction:
    """At the receiver: a `KvMemory`, addressed by the ranks of kept tokens, that knows where each chunk's belong.

    memory: has room for the kept tokens of a prompt of `tokens` tokens, and holds no others.
    """

    def __init__(self, budget: Budget, layout: KvLayout, memory: KvMemory, tokens: int) -> None:
        self.rows = memory.rows
        self.memory = memory
        self.kept = budget.kept(tokens)
        self._layout = layout
        self._tokens = tokens
        self.restart()

    def restart(self) -> None:
        """Everything will come once more."""
        self._placement = Placement(self._tokens, self.kept, self._layout.layers)

    def admit(self, payload: Payload, layers: range, token_start: int, token_stop: int) -> Admitted:
        """What may be written of this chunk.

        Raises:
            CorruptPayload: it does not decode, or its tokens cannot lie where it says.
        """
        shape = ChunkShape.of(self._layout.shape(layers.start), len(layers), token_stop - token_start)
        kept = read_kept(payload, shape)
        places = [
            range(before, before + count)
            for before, count in zip(kept.before.tolist(), kept.counts.tolist(), strict=True)
        ]
        for layer, place in zip(layers, places, strict=True):
            self._placement.admit(layer, Placed(token_start, token_stop, place.start, len(place)))
        return Admitted(shape, kept, places)

    def decode(self, payload: Payload, layers: range, token_start: int, token_stop: int) -> None:
        """Write the kept rows of this chunk to their places.

        Raises:
            CorruptPayload: it does not decode, or its tokens cannot lie where it says; nothing was written.
            LayoutError: the engine's memory is not as announced.
        """
        admitted = self.admit(payload, layers, token_start, token_stop)
        sinks = [
            chunk_rows(self.memory, self._layout.shape(layer), range(layer, layer + 1), place.start, place.stop)
            for layer, place in zip(layers, admitted.places, strict=True)
            if place
        ]
        unpack(payload, admitted.shape, admitted.kept, joined_rows(sinks))

    def check(self) -> None:
        """At the end. Raises CorruptPayload: not every layer has exactly its kept tokens."""
        self._placement.check()
