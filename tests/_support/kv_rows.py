"""Rows of KV as codecs take them, made from and read as floats."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kvferry_runtime.codec.base import ChunkShape, Codec
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.layout import KvDtype

Elements = npt.NDArray[np.generic]

FLOAT_DTYPES = (KvDtype.BF16, KvDtype.FP16, KvDtype.FP32)
_TORCH = {KvDtype.BF16: torch.bfloat16, KvDtype.FP16: torch.float16, KvDtype.FP32: torch.float32}
_FIRST_NOT_FINITE = {KvDtype.BF16: 0x7F80, KvDtype.FP16: 0x7C00, KvDtype.FP32: 0x7F800000}


def rows_of(values: npt.ArrayLike, dtype: KvDtype) -> Elements:
    """Floats [rows, head_dim], rounded to `dtype`, as its unsigned integers."""
    tensor = torch.tensor(np.asarray(values, np.float64)).to(_TORCH[dtype])
    return tensor.view({2: torch.int16, 4: torch.int32}[dtype.itemsize]).numpy().view(element_dtype(dtype))


def values_of(rows: Elements, dtype: KvDtype) -> npt.NDArray[np.float64]:
    signed = torch.from_numpy(rows.view(f"i{dtype.itemsize}").copy())
    return signed.view(_TORCH[dtype]).double().numpy()


def is_finite(rows: Elements, dtype: KvDtype) -> npt.NDArray[np.bool_]:
    """For each element, from its bits."""
    limit = _FIRST_NOT_FINITE[dtype]
    return (rows & (2 ** (8 * dtype.itemsize - 1) - 1)) < limit


def outlier_rows(count: int, head_dim: int, dtype: KvDtype, seed: int = 0) -> Elements:
    """Gaussian rows with a few strong channels, as real keys have them."""
    generator = np.random.default_rng(seed)
    channels = np.where(np.arange(head_dim) % 29 == 0, 25.0, 1.0)
    return rows_of(generator.standard_normal((count, head_dim)) * channels, dtype)


def flat_shape(rows: int, head_dim: int, dtype: KvDtype) -> ChunkShape:
    """For methods to which a row is a row, whatever its layer, part, token and head."""
    return ChunkShape(layers=1, parts=1, tokens=rows, heads=1, head_dim=head_dim, dtype=dtype)


def encoded(codec: Codec, rows: list[Elements], dtype: KvDtype, shape: ChunkShape | None = None) -> bytes:
    """shape: `flat_shape` of the rows if not given."""
    shape = shape or flat_shape(sum(map(len, rows)), rows[0].shape[1], dtype)
    out = np.zeros(codec.max_wire_bytes(shape), np.uint8)
    length = codec.encode(rows, shape, out)
    return out[:length].tobytes()


def decoded(
    codec: Codec, payload: bytes, count: int, head_dim: int, dtype: KvDtype, shape: ChunkShape | None = None
) -> Elements:
    rows = np.full((count, head_dim), 0xA5, element_dtype(dtype))
    codec.decode(np.frombuffer(payload, np.uint8), shape or flat_shape(count, head_dim, dtype), [rows])
    return rows


def round_trip(codec: Codec, rows: Elements, dtype: KvDtype) -> Elements:
    return decoded(codec, encoded(codec, [rows], dtype), *rows.shape, dtype)
