"""What lossy methods do is looked at on every so many chunks, and only a bad layer loses its method."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from kvferry_runtime.agent.self_check import EVERY, SelfCheck
from kvferry_runtime.codec.base import ChunkShape, Codec, Payload, Rows
from kvferry_runtime.codec.none.format import NoneCodec
from kvferry_runtime.errors import CorruptPayload
from kvferry_runtime.layout import KvDtype

SHAPE = ChunkShape(layers=2, parts=2, tokens=8, heads=2, head_dim=16, dtype=KvDtype.FP32)
LAYERS = [4, 5]


class Spoiled(NoneCodec):
    """Exact, but for the rows of one layer of each chunk, which come back doubled; counts what it decodes."""

    name: ClassVar[str] = "int8"
    lossy: ClassVar[bool] = True

    def __init__(self, layer: int | None = None, unreadable: bool = False) -> None:
        self.decoded = 0
        self._layer = layer
        self._unreadable = unreadable

    def decode(self, payload: Payload, shape: ChunkShape, rows: Rows) -> None:
        self.decoded += 1
        if self._unreadable:
            raise CorruptPayload("unreadable")
        super().decode(payload, shape, rows)
        if self._layer is not None:
            per_layer = shape.rows // shape.layers
            rows[0].view(np.float32)[self._layer * per_layer : (self._layer + 1) * per_layer] *= 2


def look(check: SelfCheck, codec: Codec, slot: int = 0) -> bool:
    """Whether a chunk that was encoded may leave like this."""
    if not check.due(slot):
        return True
    values = np.random.default_rng(1).standard_normal((SHAPE.rows, SHAPE.head_dim), np.float32)
    rows = [values[:10].view(np.uint32), values[10:].view(np.uint32)]
    payload = np.empty(SHAPE.raw_bytes, np.uint8)
    codec.encode(rows, SHAPE, payload)
    return check.passes(codec, rows, payload, SHAPE, LAYERS, slot)


def test_the_first_of_every_so_many_chunks_is_decoded() -> None:
    check, codec = SelfCheck(0.05), Spoiled()
    for _ in range(2 * EVERY + 1):
        assert look(check, codec)
    assert codec.decoded == 3


def test_what_was_found_is_told_once() -> None:
    check = SelfCheck(0.05)
    look(check, Spoiled(), slot=7)
    found = check.take(7)
    assert found is not None and (found.method, found.relative_error, found.failed) == ("int8", 0.0, False)
    assert check.take(7) is None


def test_a_slot_that_is_used_again_tells_nothing_old() -> None:
    check = SelfCheck(0.05)
    look(check, Spoiled(), slot=7)
    look(check, Spoiled(), slot=7)
    assert check.take(7) is None


def test_only_the_bad_layer_loses_the_method(caplog: pytest.LogCaptureFixture) -> None:
    check = SelfCheck(0.05)
    assert not look(check, Spoiled(layer=1))
    assert check.allows("int8", [4]) and check.allows("fp8", [5])
    assert not check.allows("int8", [5]) and not check.allows("int8", [4, 5])
    found = check.take(0)
    assert found is not None and found.failed and found.relative_error > 0.05
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == [5]


def test_a_payload_that_cannot_be_decoded_never_leaves() -> None:
    check = SelfCheck(0.05)
    assert not look(check, Spoiled(unreadable=True))
    found = check.take(0)
    assert found is not None and found.failed and np.isfinite(found.relative_error)
