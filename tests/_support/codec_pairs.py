"""Every method on host memory beside its oracle, and rows that are hard on codecs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from kv_rows import Elements, is_finite, outlier_rows, rows_of
from kvferry_runtime.codec.base import ChunkShape, Codec
from kvferry_runtime.codec.fp4.reference import ReferenceFp4
from kvferry_runtime.codec.fp8.reference import ReferenceFp8, ReferenceFp8Head, ReferenceFp8Tensor
from kvferry_runtime.codec.int8.reference import ReferenceInt8
from kvferry_runtime.codec.k8v4.reference import ReferenceK8V4
from kvferry_runtime.codec.lossless.reference import ReferenceLossless
from kvferry_runtime.codec.none.format import NoneCodec
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.layout import KvDtype

ORACLES: Mapping[str, Codec] = {
    oracle.name: oracle
    for oracle in (
        NoneCodec(), ReferenceInt8(), ReferenceFp8(), ReferenceFp8Head(), ReferenceFp8Tensor(), ReferenceLossless(),
        ReferenceK8V4(), ReferenceFp4(),
    )
}  # fmt: skip


def kv_shape(head_dim: int, dtype: KvDtype) -> ChunkShape:
    """Keys and values of a layer: five tokens of two heads."""
    return ChunkShape(layers=1, parts=2, tokens=5, heads=2, head_dim=head_dim, dtype=dtype)


def _values(make: Callable[[ChunkShape], np.ndarray]) -> Callable[[ChunkShape], Elements]:
    return lambda shape: rows_of(make(shape), shape.dtype)


def _largest(shape: ChunkShape) -> float:
    return {KvDtype.BF16: 3e38, KvDtype.FP16: 65504.0, KvDtype.FP32: 3.4e38}[shape.dtype]


def _full(shape: ChunkShape, value: float) -> np.ndarray:
    return np.full((shape.rows, shape.head_dim), value)


def _alternating(shape: ChunkShape) -> np.ndarray:
    return np.where(np.arange(shape.rows * shape.head_dim) % 2 == 0, 1.0, -1.0).reshape(shape.rows, -1)


def _subnormal_bits(shape: ChunkShape) -> Elements:
    """Subnormals of both signs only; every row's first element is the smallest."""
    element = element_dtype(shape.dtype)
    mantissa = {KvDtype.BF16: 7, KvDtype.FP16: 10, KvDtype.FP32: 23}[shape.dtype]
    generator = np.random.default_rng(5)
    rows = generator.integers(1, 1 << mantissa, (shape.rows, shape.head_dim), np.uint64)
    rows |= generator.integers(0, 2, rows.shape, np.uint64) << np.uint64(8 * shape.dtype.itemsize - 1)
    rows[:, 0] = 1
    return rows.astype(element)


def _any_finite_bits(shape: ChunkShape) -> Elements:
    generator = np.random.default_rng(6)
    bits = 8 * shape.dtype.itemsize
    rows = generator.integers(0, 1 << bits, (shape.rows, shape.head_dim), np.uint64).astype(element_dtype(shape.dtype))
    rows[~is_finite(rows, shape.dtype)] = 0
    return rows


def _spikes(shape: ChunkShape) -> np.ndarray:
    """Everything tiny but one element of each row."""
    values = np.random.default_rng(7).standard_normal((shape.rows, shape.head_dim)) * 1e-5
    values[np.arange(shape.rows), np.arange(shape.rows) % shape.head_dim] = 6e4
    return values


HOSTILE_ROWS: Mapping[str, Callable[[ChunkShape], Elements]] = {
    "zeros": _values(lambda shape: _full(shape, 0.0)),
    "negative zeros": _values(lambda shape: _full(shape, -0.0)),
    "all equal": _values(lambda shape: _full(shape, -0.37)),
    "alternating signs": _values(_alternating),
    "the largest values": _values(lambda shape: _alternating(shape) * _largest(shape)),
    "the smallest normal values": _values(lambda shape: _alternating(shape) * 2.0**-126),
    "subnormals only": _subnormal_bits,
    "any finite bits": _any_finite_bits,
    "one spike a row": _values(_spikes),
    "outlier channels": lambda shape: outlier_rows(shape.rows, shape.head_dim, shape.dtype),
}
