"""How fast a codec for host memory is in this process, measured on made-up values that are in no cache, as KV is when
its turn comes: from the cache a copy is several times as fast, and coded methods would look poor beside it."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from kvferry_runtime.auto.speeds import MethodSpeed
from kvferry_runtime.codec.base import ChunkShape, Codec, Payload, Rows
from kvferry_runtime.errors import CodecError
from kvferry_runtime.layout import KvDtype, LayerShape

PROBE_BYTES = 512 * 1024
"""Of the made-up chunk: a round takes a fraction of a millisecond, and some to empty the cache before it."""
PROBE_ROUNDS = 3
_CACHE_BYTES = 16 << 20
"""More than a core has for itself."""


def measure(codec: Codec, shape: LayerShape, digest: Callable[[Payload], object]) -> MethodSpeed:
    """How fast a method carries values like those of KV caches: normal, a few channels much larger.

    One that cannot carry them is given a speed with which nobody would choose it. digest: goes over each payload too.
    """
    tokens = max(1, PROBE_BYTES // shape.bytes_per_token)
    chunk = ChunkShape.of(shape, 1, tokens)
    rows = _made_up(chunk)
    try:
        payload = np.empty(max(chunk.raw_bytes, codec.max_wire_bytes(chunk)), np.uint8)
        wire_bytes = codec.encode(rows, chunk, payload)
        sent = payload[:wire_bytes]
        encode = _fastest(lambda: (codec.encode(rows, chunk, payload), digest(sent)))
        decode = _fastest(lambda: (digest(sent), codec.decode(sent, chunk, rows)))
    except CodecError:
        return MethodSpeed(codec.name, 1.0, 1.0, 1.0)
    return MethodSpeed(codec.name, wire_bytes / chunk.raw_bytes, chunk.raw_bytes / encode, chunk.raw_bytes / decode)


def _fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few rounds: the others were disturbed."""
    times = []
    others = np.ones(_CACHE_BYTES, np.uint8)
    for _ in range(PROBE_ROUNDS):
        others += 1
        begun = time.thread_time()
        work()
        times.append(time.thread_time() - begun)
    return max(min(times), 1e-9)


def _made_up(shape: ChunkShape) -> Rows:
    generator = np.random.default_rng(0)
    values = generator.standard_normal((shape.rows, shape.head_dim), np.float32)
    values[:, ::31] *= 20
    if shape.dtype is KvDtype.BF16:
        return [np.ascontiguousarray((values.view(np.uint32) >> np.uint32(16)).astype(np.uint16))]
    if shape.dtype is KvDtype.FP16:
        return [values.astype(np.float16).view(np.uint16)]
    return [values.view(np.uint32)]
