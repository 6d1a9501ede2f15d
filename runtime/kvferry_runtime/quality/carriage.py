"""The KV of a prompt as decode gets it: through encode and decode of a method, chunk by chunk as in a transfer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.agent.eviction import Compaction, Eviction
from kvferry_runtime.agent.gather import chunk_rows
from kvferry_runtime.codec.base import ChunkShape, Codec, Payload, Rows
from kvferry_runtime.codec.none.format import NoneCodec
from kvferry_runtime.codec.sparse.budget import Budget
from kvferry_runtime.codec.sparse.payload import largest_raw_bytes
from kvferry_runtime.errors import NotEncodable
from kvferry_runtime.layout import KvLayout
from kvferry_runtime.plan import Chunk, layer_chunks

CHUNK_BYTES = 1 << 20
"""The default of `transfer.overlap.chunkBytes`."""


@dataclass(frozen=True, slots=True)
class Exact:
    """`transfer.compression.keepExact`: tokens at the prompt's two ends that lossy methods leave as they are."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Carried:
    """kept: tokens in the target, one behind the other."""

    kept: int
    raw_bytes: int
    wire_bytes: int


class Carriage(ABC):
    """One method, with its settings."""

    @abstractmethod
    def kept(self, tokens: int) -> int:
        """Tokens of a prompt that arrive."""

    @abstractmethod
    def carry(self, layout: KvLayout, source: KvMemory, target: KvMemory, tokens: int) -> Carried:
        """Fill `target` with what arrives of the first `tokens` tokens of `source`.

        Raises:
            KvferryError: the method cannot carry this layout.
        """


class Dense(Carriage):
    """Every token, by a codec."""

    def __init__(self, codec: Codec, exact: Exact) -> None:
        self._codec = codec
        self._raw = NoneCodec()
        self._exact = exact

    def kept(self, tokens: int) -> int:
        return tokens

    def carry(self, layout: KvLayout, source: KvMemory, target: KvMemory, tokens: int) -> Carried:
        raw_bytes = wire_bytes = 0
        for layer in layout.layers:
            shape = layout.shape(layer)
            for chunk in _chunks(layout, layer, tokens, CHUNK_BYTES, self._codec.lossy, self._exact):
                span = (shape, range(layer, layer + 1), chunk.token_start, chunk.token_stop)
                chunk_shape = ChunkShape.of(shape, 1, chunk.token_stop - chunk.token_start)
                codec, payload = self._encoded(chunk_rows(source, *span), chunk_shape, chunk.exact)
                codec.decode(payload, chunk_shape, chunk_rows(target, *span))
                raw_bytes += chunk_shape.raw_bytes
                wire_bytes += payload.size
        return Carried(tokens, raw_bytes, wire_bytes)

    def _encoded(self, rows: Rows, shape: ChunkShape, exact: bool) -> tuple[Codec, Payload]:
        """The codec that did it, and the payload: exact tokens, and what a method cannot encode, go raw."""
        for codec in (self._raw,) if exact else (self._codec, self._raw):
            out = np.empty(codec.max_wire_bytes(shape), np.uint8)
            try:
                return codec, out[: codec.encode(rows, shape, out)]
            except NotEncodable:
                continue
        raise AssertionError("raw bytes can always be sent")


class Sparse(Carriage):
    """The tokens that matter. A source that is no `ScoredMemory` is judged by its keys."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def kept(self, tokens: int) -> int:
        return self._budget.kept(tokens)

    def carry(self, layout: KvLayout, source: KvMemory, target: KvMemory, tokens: int) -> Carried:
        eviction = Eviction(self._budget, layout, source, tokens)
        compaction = Compaction(self._budget, layout, target, tokens)
        slot = np.empty(CHUNK_BYTES, np.uint8)
        raw_bytes = wire_bytes = 0
        for layer in layout.layers:
            room = largest_raw_bytes(CHUNK_BYTES, layout.shape(layer).bytes_per_token)
            for chunk in _chunks(layout, layer, tokens, room, False, Exact(0, 0)):
                span = (range(layer, layer + 1), chunk.token_start, chunk.token_stop)
                length = eviction.encode(*span, slot)
                compaction.decode(slot[:length], *span)
                raw_bytes += chunk.raw_bytes
                wire_bytes += length
        compaction.check()
        return Carried(compaction.kept, raw_bytes, wire_bytes)


def _chunks(layout: KvLayout, layer: int, tokens: int, chunk_bytes: int, lossy: bool, exact: Exact) -> list[Chunk]:
    return layer_chunks(layout, layer, 0, tokens, tokens, chunk_bytes, lossy, exact.first, exact.last, 0)
