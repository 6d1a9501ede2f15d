"""The KV of one stand-in's prompt: values like those of a model, the same on both sides, others at every place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.layout import KvDtype, KvLayout

Words = npt.NDArray[np.uint16]

_PERIOD = (1 << 18) - 1
"""Odd, so that no two tokens of a layer hold the same values."""
_OUTLIER_EVERY, _OUTLIER_SIZE = 32, 8.0
"""Some channels are larger than the others, as in real keys."""


class RequestKv:
    """bf16, one contiguous tensor for each layer."""

    def __init__(self, layout: KvLayout, tokens: int) -> None:
        assert all(shape.dtype is KvDtype.BF16 for shape in layout.shapes), "the layouts here are all bf16"
        self._layout = layout
        self._tensors: list[Words] = [
            np.zeros((shape.parts, tokens, shape.heads, shape.head_dim), np.uint16) for shape in layout.shapes
        ]

    def memory(self) -> ContiguousKv:
        return ContiguousKv(self._layout, self._tensors)

    def fill(self) -> None:
        """Write the values that both sides know."""
        for layer, tensor in zip(self._layout.layers, self._tensors, strict=True):
            tensor[:] = _expected(layer, tensor.shape)

    def clear(self) -> None:
        for tensor in self._tensors:
            tensor.fill(0)

    def worst_error(self, tokens: int) -> float:
        """Of the first `tokens` tokens, as a share of the largest value of its token and head; 0 is bit for bit."""
        worst = 0.0
        for layer, tensor in zip(self._layout.layers, self._tensors, strict=True):
            found, source = tensor[:, :tokens], _expected(layer, tensor.shape)[:, :tokens]
            if np.array_equal(found, source):
                continue
            ours, theirs = _floats(found), _floats(source)
            scale = np.abs(theirs).max(axis=-1, keepdims=True)
            worst = max(worst, float((np.abs(ours - theirs) / scale).max()), float(np.finfo(np.float32).tiny))
        return worst


def _expected(layer: int, shape: tuple[int, ...]) -> Words:
    values = np.random.default_rng(11 + layer).standard_normal(_PERIOD, np.float32)
    whole = np.resize(values, shape)
    whole[..., ::_OUTLIER_EVERY] *= _OUTLIER_SIZE
    return (whole.view(np.uint32) >> 16).astype(np.uint16)


def _floats(words: Words) -> npt.NDArray[np.float32]:
    return (words.astype(np.uint32) << 16).view(np.float32)
