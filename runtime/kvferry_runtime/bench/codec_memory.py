"""The memory that codecs are measured on: chunks of a sample, a slot for each payload, and room for what comes back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvferry_runtime.bench.kv_samples import BLOCK_TOKENS, KvSample, Words
from kvferry_runtime.codec.base import ChunkShape, Codec
from kvferry_runtime.codec.error import layer_errors
from kvferry_runtime.codec.paged_rows import BlockPool, PagedRows

_SCALES_BYTES = 8
"""Room behind a slot for each row: methods of fixed ratio may exceed the raw size where rows are short."""


class CodecMemory:
    """A chunk's rows are one array, or, shuffled, the blocks of a paged cache from all over the sample."""

    def __init__(self, sample: KvSample) -> None:
        self.shape = sample.shape
        self.sources = sample.words
        self.chunks = len(sample.words)
        self.lengths = [0] * self.chunks
        self._sinks = np.zeros_like(sample.words)
        self._pools = [BlockPool(_blocks(words, sample.shape)) for words in (self.sources, self._sinks)]
        self._slots = np.zeros((self.chunks, sample.shape.raw_bytes + sample.shape.rows * _SCALES_BYTES), np.uint8)
        self._order = _shuffled_blocks(self.chunks, sample.shape.tokens // BLOCK_TOKENS).astype(np.uint64)

    def copy(self, chunk: int) -> None:
        source = self.sources[chunk]
        np.copyto(self._slots[chunk, : source.nbytes].view(np.uint16).reshape(source.shape), source)

    def encode(self, codec: Codec, chunk: int, *, shuffled: bool = False) -> None:
        rows = self._shuffled(0, chunk) if shuffled else [self.sources[chunk]]
        self.lengths[chunk] = codec.encode(rows, self.shape, self._slots[chunk])

    def decode(self, codec: Codec, chunk: int, *, shuffled: bool = False) -> None:
        """What `encode` left in the chunk's slot."""
        rows = self._shuffled(1, chunk) if shuffled else [self._sinks[chunk]]
        codec.decode(self._slots[chunk, : self.lengths[chunk]], self.shape, rows)

    def is_exact(self) -> bool:
        """Whether every value came back."""
        return np.array_equal(self.sources, self._sinks)

    def largest_error(self) -> float:
        """Of any row, as the self-check of transfers measures it."""
        pairs = zip(self.sources, self._sinks, strict=True)
        return max(max(layer_errors([source], sink, self.shape)) for source, sink in pairs)

    def _shuffled(self, pool: int, chunk: int) -> PagedRows:
        return self._pools[pool].part(self._order[chunk], 0, self.shape.rows)


def _blocks(words: Words, shape: ChunkShape) -> Words:
    return words.reshape(-1, BLOCK_TOKENS * shape.heads, shape.head_dim)


def _shuffled_blocks(chunks: int, blocks_of_part: int) -> npt.NDArray[np.int64]:
    """[chunks, blocks of a chunk]: which blocks each chunk has; those of keys stay keys."""
    generator = np.random.default_rng(1)
    numbers = np.arange(chunks * 2 * blocks_of_part).reshape(chunks, 2, blocks_of_part)
    parts = [generator.permutation(numbers[:, part].reshape(-1)).reshape(chunks, -1) for part in range(2)]
    return np.concatenate(parts, axis=1)
