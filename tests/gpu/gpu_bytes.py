"""Kernels write the oracle's bytes on the device too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

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
from sparse_chunks import any_kept, any_rows, flat, reference_payload
from sparse_on_device import packed_on_device

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
    yield from _sparse(machine, shapes)
    chunks = [pages.on(machine.gpu.where) for shape in shapes for pages in _chunks(shape)]
    for name, codec in device_codecs().items():
        equal = [alike(codec, pages) for pages in chunks]
        share = sum(equal) / len(equal)
        yield Figure(f"gpu.bytes.{name}", share, "share", 1.0, share, len(equal))
        assert all(equal), (
            f"{name}: the device writes other bytes for chunks {[i for i, ok in enumerate(equal) if not ok]}"
        )


def _sparse(machine: Machine, shapes: Sequence[ChunkShape]) -> Iterator[Figure]:
    equal = []
    for seed, shape in enumerate(shapes):
        whole, kept = any_rows(shape, seed), any_kept(shape, seed)
        kept = replace(kept, before=kept.before % 100)
        pages = pages_of(flat(whole), shape, block_tokens=16).on(machine.gpu.where)
        equal.append(packed_on_device(pages, kept) == reference_payload(whole, kept))
    yield Figure("gpu.bytes.sparse", sum(equal) / len(equal), "share", 1.0, sum(equal) / len(equal), len(equal))
    assert all(equal), "sparse: the device writes other bytes"


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
