"""A benchmark that counts wrong bytes as fast bytes is worthless: its own check must see every fault."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvferry_contract.config import Method
from kvferry_runtime.bench.cache import LAYOUT, TOLERANCE, BenchCache
from kvferry_runtime.bench.stamps import stamping
from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.registry import host_codecs
from kvferry_runtime.errors import CorruptPayload
from kvferry_runtime.layout import KvDtype

TOKENS = 40


@pytest.fixture(params=[False, True], ids=["contiguous", "paged"])
def cache(request: pytest.FixtureRequest) -> BenchCache:
    cache = BenchCache(TOKENS, paged=request.param, seed=1)
    cache.fill(TOKENS)
    return cache


def test_what_was_filled_is_right(cache: BenchCache) -> None:
    assert cache.worst_error(TOKENS) == 0.0
    assert cache.worst_error(TOKENS - 7) == 0.0


def _flip_a_bit(cache: BenchCache) -> None:
    cache.memory().rows(3, 1, TOKENS - 1, TOKENS)[0][-1, -1] ^= 1


def _swap_tokens(cache: BenchCache) -> None:
    left, right = (cache.memory().rows(2, 0, token, token + 1)[0] for token in (3, 20))
    left[:], right[:] = right.copy(), left.copy()


def _swap_parts(cache: BenchCache) -> None:
    left, right = (cache.memory().rows(1, part, 5, 6)[0] for part in (0, 1))
    left[:], right[:] = right.copy(), left.copy()


@pytest.mark.parametrize("harm", [_flip_a_bit, _swap_tokens, _swap_parts, BenchCache.clear])
def test_any_wrong_value_is_seen(cache: BenchCache, harm: Callable[[BenchCache], None]) -> None:
    harm(cache)
    assert cache.worst_error(TOKENS) > 0


def test_a_misplaced_row_exceeds_every_tolerance(cache: BenchCache) -> None:
    _swap_tokens(cache)
    assert cache.worst_error(TOKENS) > max(TOLERANCE.values())


@pytest.mark.parametrize("method", [Method.INT8, Method.FP8])
def test_what_a_codec_does_is_within_its_tolerance(cache: BenchCache, method: Method) -> None:
    codec = host_codecs()[method.value]
    shape = LAYOUT.shapes[0]
    extent = ChunkShape(1, 1, TOKENS, shape.heads, shape.head_dim, shape.dtype)
    for layer in LAYOUT.layers:
        for part in range(shape.parts):
            rows = cache.memory().rows(layer, part, 0, TOKENS)
            out = np.zeros(codec.max_wire_bytes(extent), np.uint8)
            length = codec.encode(rows, extent, out)
            codec.decode(out[:length], extent, rows)
    assert 0 < cache.worst_error(TOKENS) <= TOLERANCE[method.value]


def test_a_stamped_slot_that_was_not_moved_is_seen() -> None:
    codec = stamping().method
    rows = [np.zeros((4, 8), np.uint16)]
    shape = ChunkShape(1, 1, 4, 1, 8, KvDtype.BF16)
    payload = np.zeros(64, np.uint8)
    with pytest.raises(CorruptPayload, match="without its stamps"):
        codec.decode(payload, shape, rows)
    assert codec.encode(rows, shape, payload) == 64
    codec.decode(payload, shape, rows)
    with pytest.raises(CorruptPayload):
        codec.decode(payload, shape, rows)
