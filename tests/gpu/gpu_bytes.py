"""Kernels write the oracle's bytes on the device too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from gpu_machine import Machine

from codec_oracles import alike
from device_kv import Pages, pages_of
from kv_rows import outlier_rows
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.registry import device_codecs
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.layout import KvDtype

DRY = ChunkShape(1, 2, 9, 2, 33, KvDtype.BF16)
SHAPES = (
    ChunkShape(2, 2, 37, 3, 33, KvDtype.BF16),
    ChunkShape(1, 2, 70, 8, 128, KvDtype.BF16),
    ChunkShape(1, 2, 40, 2, 80, KvDtype.FP16),
    ChunkShape(3, 2, 20, 2, 64, KvDtype.FP32),
)


def check(machine: Machine) -> Iterator[Figure]:
    """`gpu.bytes.<method>`: share of chunks whose bytes are the oracle's, or which both refuse. It must be 1."""
    shapes = (DRY,) if machine.dry else SHAPES
    chunks = [pages.on(machine.gpu.where) for shape in shapes for pages in _chunks(shape)]
    for name, codec in device_codecs().items():
        equal = [alike(codec, pages) for pages in chunks]
        share = sum(equal) / len(equal)
        yield Figure(f"gpu.bytes.{name}", share, "share", 1.0, share, len(equal))
        assert all(equal), (
            f"{name}: the device writes other bytes for chunks {[i for i, ok in enumerate(equal) if not ok]}"
        )


def _chunks(shape: ChunkShape) -> Iterator[Pages]:
    """Values like those of KV, any finite bits, and any bits at all; blocks in both orders of their dimensions."""
    generator = np.random.default_rng(7)
    element = element_dtype(shape.dtype)
    bits = generator.integers(0, 1 << (8 * shape.dtype.itemsize), (shape.rows, shape.head_dim), np.uint64)
    for rows in (
        outlier_rows(shape.rows, shape.head_dim, shape.dtype),
        (bits & {2: 0xBBFF, 4: 0xBFFFFFFF}[shape.dtype.itemsize]).astype(element),
        bits.astype(element),
    ):
        for head_first in (False, True):
            yield pages_of(rows, shape, block_tokens=16, head_first=head_first)
