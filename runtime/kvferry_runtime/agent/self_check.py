"""What lossy methods do to this engine's values: measured on every so many chunks, before they leave."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from kvferry_runtime.codec.base import ChunkShape, Codec, Payload, Rows
from kvferry_runtime.codec.error import layer_errors
from kvferry_runtime.errors import CorruptPayload
from kvferry_runtime.ring.messages import Check

EVERY = 64
"""Chunks of a lossy method for one that is decoded here: a few per cent of what encoding costs."""
_LARGEST = 1e9
"""What is told of an infinite error."""
_log = logging.getLogger(__name__)


class SelfCheck:
    """limit: largest error (`codec.error`) with which a layer may go on with a method; above it, never again here.

    Used by one thread. What was switched off stays so until the engine starts anew, and is logged once.
    """

    def __init__(self, limit: float, every: int = EVERY) -> None:
        self._limit = limit
        self._every = every
        self._chunks = 0
        self._off: set[tuple[str, int]] = set()
        self._checks: dict[int, Check] = {}

    def allows(self, method: str, layers: Sequence[int]) -> bool:
        """Whether chunks of these layers (global numbers) may go with this method."""
        return not any((method, layer) in self._off for layer in layers)

    def take(self, slot: int) -> Check | None:
        """What decoding the chunk in this slot gave, once."""
        return self._checks.pop(slot, None)

    def due(self, slot: int) -> bool:
        """Count a chunk that goes into this slot with a lossy method. Whether it is to be decoded: the first one is,
        then every so many."""
        self._checks.pop(slot, None)
        self._chunks += 1
        return self._chunks % self._every == 1 % self._every

    def passes(
        self, codec: Codec, rows: Rows, payload: Payload, shape: ChunkShape, layers: Sequence[int], slot: int
    ) -> bool:
        """Decode a chunk that is due.

        payload: what `codec` made of `rows`. layers: global numbers, as many as `shape` has. Returns False if the error
        is too large; then the chunk must go exact.
        """
        errors = _errors(codec, rows, payload, shape)
        bad = {layer: error for layer, error in zip(layers, errors, strict=True) if not error <= self._limit}
        for layer, error in bad.items():
            self._off.add((codec.name, layer))
            _log.warning(
                "layer %d goes without %s from now on: its relative error is %.3g, maxRelativeError is %g",
                layer, codec.name, error, self._limit,
            )  # fmt: skip
        self._checks[slot] = Check(codec.name, min(max(errors), _LARGEST), bool(bad))
        return not bad


def _errors(codec: Codec, rows: Rows, payload: Payload, shape: ChunkShape) -> list[float]:
    """Of each layer; infinity where the payload cannot even be decoded."""
    decoded = np.empty((shape.rows, shape.head_dim), rows[0].dtype)
    try:
        codec.decode(payload, shape, [decoded])
    except CorruptPayload:
        return [np.inf] * shape.layers
    return layer_errors(rows, decoded, shape)
