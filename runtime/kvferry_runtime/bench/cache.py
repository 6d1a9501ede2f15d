"""The KV that is moved: the same values on both sides, different at every place, so that a misplaced row shows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.agent.paged import PagedCache, PagedKv
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape

LAYOUT = KvLayout(total_layers=4, first_layer=0, shapes=(LayerShape(2, 8, 128, KvDtype.BF16),) * 4)
"""Heads as in common 8B models. Four layers: 16 KiB a token, so that 64 KiB are a few tokens."""

BLOCK_TOKENS = 16
_PERIOD = (1 << 18) - 1
"""Odd, so that no two tokens of the largest transfer hold the same values."""
Words = npt.NDArray[np.uint16]

_BF16_ROUNDING = 2**-8
TOLERANCE = {"none": 0.0, "int8": 0.51 / 127 + _BF16_ROUNDING, "fp8": 2**-4 + _BF16_ROUNDING}
"""Largest error of a value, as a share of the largest value of its token and head."""


class BenchCache:
    """Room for `tokens` tokens, contiguous or in shuffled blocks."""

    def __init__(self, tokens: int, paged: bool, seed: int) -> None:
        """seed: of the order of blocks."""
        self._blocks = -(-tokens // BLOCK_TOKENS)
        self._order = np.random.default_rng(seed).permutation(self._blocks) if paged else None
        shape = LAYOUT.shapes[0]
        room: tuple[int, ...] = (shape.parts, tokens, shape.heads, shape.head_dim)
        if paged:
            room = (self._blocks, shape.parts, BLOCK_TOKENS, shape.heads, shape.head_dim)
        self._tensors: list[Words] = [np.zeros(room, np.uint16) for _ in LAYOUT.layers]
        self._cache = PagedCache(LAYOUT, self._tensors) if paged else None

    def memory(self) -> KvMemory:
        if self._cache is None or self._order is None:
            return ContiguousKv(LAYOUT, self._tensors)
        return PagedKv(self._cache, self._order.tolist())

    def fill(self, tokens: int) -> None:
        """Write the values that both sides know into the first `tokens` tokens."""
        for layer in LAYOUT.layers:
            for part in range(LAYOUT.shape(layer).parts):
                source = expected(layer, part, tokens)
                position = 0
                for rows in self.memory().rows(layer, part, 0, tokens):
                    rows[:] = source[position : position + len(rows)]
                    position += len(rows)

    def clear(self) -> None:
        for tensor in self._tensors:
            tensor.fill(0)

    def worst_error(self, tokens: int) -> float:
        """Largest error over all values, as a share of the largest value of its token and head; 0 is bit for bit."""
        worst = 0.0
        for layer in LAYOUT.layers:
            for part in range(LAYOUT.shape(layer).parts):
                found: Words = np.concatenate(self.memory().rows(layer, part, 0, tokens)).view(np.uint16)
                source = expected(layer, part, tokens)
                if np.array_equal(found, source):
                    continue
                for start in range(0, len(found), 4096):
                    ours, theirs = _floats(found[start : start + 4096]), _floats(source[start : start + 4096])
                    scale = np.abs(theirs).max(axis=1, keepdims=True)
                    worst = max(worst, float((np.abs(ours - theirs) / scale).max()))
                worst = max(worst, float(np.finfo(np.float32).tiny))
        return worst


def expected(layer: int, part: int, tokens: int) -> Words:
    """[tokens * heads, head_dim]: Gaussian bf16 values, others for each layer and part."""
    shape = LAYOUT.shape(layer)
    gaussian = np.random.default_rng(7 + 2 * layer + part).standard_normal(_PERIOD, np.float32)
    words: Words = (gaussian.view(np.uint32) >> 16).astype(np.uint16)
    return np.resize(words, (tokens * shape.heads, shape.head_dim))


def _floats(words: Words) -> npt.NDArray[np.float32]:
    return (words.astype(np.uint32) << 16).view(np.float32)
