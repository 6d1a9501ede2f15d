"""A chunk is encoded once: by the usual method where that pays, by the exact one where it cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kv_rows import outlier_rows
from kv_settings import kv_layout
from kvferry_contract.config import Integrity
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.agent.self_check import SelfCheck
from kvferry_runtime.agent.slot_codec import SlotCodec
from kvferry_runtime.codec.base import ChunkShape, Codec, Payload, Rows
from kvferry_runtime.codec.registry import METHODS, host_codecs
from kvferry_runtime.layout import KvDtype, KvLayout
from kvferry_runtime.plan import Chunk
from kvferry_runtime.ring.memory import RingMemory

TOKENS, CHUNK_BYTES = 16, 64 << 10
CODECS = host_codecs(["none", "lossless", "int8"])


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingMemory]:
    memory = RingMemory.create(tmp_path, 1, CHUNK_BYTES, "boot-1")
    yield memory
    memory.close()


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each method was used."""
    calls: Counter[str] = Counter()
    for codec in CODECS.values():

        def counted(rows: Rows, shape: ChunkShape, out: Payload, codec: Codec = codec) -> int:
            calls[codec.name] += 1
            return type(codec).encode(codec, rows, shape, out)

        monkeypatch.setattr(codec, "encode", counted)
    return calls


def sent(ring: RingMemory, method: str, layout: KvLayout, values: np.ndarray) -> str:
    """Send one layer through a slot, see that it arrives, and tell by which method it went."""
    shape = layout.shape(0)
    target = np.zeros_like(values)
    source, sink = ContiguousKv(layout, [values]), ContiguousKv(layout, [target])
    slots = SlotCodec(CODECS[method], CODECS["none"], CODECS, Integrity.DIGEST, SelfCheck(1.0, every=1 << 30))
    raw_bytes = TOKENS * shape.bytes_per_token
    header = slots.fill(ring, 0, layout, source, "0" * 32, 0, Chunk(0, 0, 1, 0, TOKENS, False, raw_bytes), "")
    assert header.wire_bytes <= raw_bytes
    slots.read(ring, 0, header, shape, sink)
    if header.codec != METHODS["int8"]:
        assert np.array_equal(target, values)
    return next(name for name, number in METHODS.items() if number == header.codec)


def values_of(layout: KvLayout) -> np.ndarray:
    shape = layout.shape(0)
    rows = outlier_rows(2 * TOKENS * shape.heads, shape.head_dim, shape.dtype)
    return rows.reshape(2, TOKENS, shape.heads, shape.head_dim)


@pytest.mark.parametrize(
    ("method", "dtype", "head_dim"),
    [
        pytest.param("lossless", KvDtype.FP16, 64, id="an exact method that cannot make it smaller"),
        pytest.param("lossless", KvDtype.BF16, 64, id="an exact method"),
        pytest.param("int8", KvDtype.BF16, 64, id="a lossy method"),
    ],
)
def test_what_pays_is_used_and_nothing_else(
    ring: RingMemory, encoded: Counter[str], method: str, dtype: KvDtype, head_dim: int
) -> None:
    layout = kv_layout(1, heads=2, head_dim=head_dim, dtype=dtype)
    assert sent(ring, method, layout, values_of(layout)) == method
    assert encoded == {method: 1}


def test_a_lossy_method_that_gains_nothing_is_not_even_tried(ring: RingMemory, encoded: Counter[str]) -> None:
    """Case 29: a scale of four bytes for a row of eight."""
    layout = kv_layout(1, heads=2, head_dim=4, dtype=KvDtype.BF16)
    assert sent(ring, "int8", layout, values_of(layout)) == "none"
    assert encoded == {"none": 1}


def test_what_a_lossy_method_cannot_carry_goes_exact(ring: RingMemory) -> None:
    """Case 28."""
    layout = kv_layout(1, heads=2, head_dim=64, dtype=KvDtype.BF16)
    values = values_of(layout)
    values[1, 3, 0, 7] = 0x7F80
    assert sent(ring, "int8", layout, values) == "none"
