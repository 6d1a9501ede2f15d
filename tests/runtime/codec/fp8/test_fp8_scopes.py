"""Which values share a scale in `fp8`, `fp8-head` and `fp8-tensor`."""

from __future__ import annotations

import numpy as np
import pytest

from codec_pairs import ORACLES
from kv_rows import FLOAT_DTYPES, decoded, encoded, outlier_rows, rows_of, values_of
from kvferry_runtime.codec.base import ChunkShape, Codec, ScaleScope
from kvferry_runtime.codec.registry import host_codecs
from kvferry_runtime.errors import CorruptPayload, NotEncodable
from kvferry_runtime.layout import KvDtype

NAMES = ("fp8", "fp8-head", "fp8-tensor")
HOST = host_codecs(NAMES)
CODECS = {f"{kind}-{name}": codecs[name] for kind, codecs in (("host", HOST), ("oracle", ORACLES)) for name in NAMES}
SHAPE = ChunkShape(layers=2, parts=2, tokens=3, heads=4, head_dim=32, dtype=KvDtype.BF16)
SCALES = {"fp8": (2, 2, 3, 4), "fp8-head": (2, 2, 4), "fp8-tensor": (2, 2)}
SPANNED = {"fp8": (), "fp8-head": (2,), "fp8-tensor": (2, 3)}
"""Dimensions of [layer, part, token, head] over which a scale reaches."""


def scales_of(payload: bytes, name: str) -> np.ndarray:
    return np.frombuffer(payload[SHAPE.rows * SHAPE.head_dim :], "<f4").reshape(SCALES[name])


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_each_scale_is_that_of_the_largest_value_in_its_scope(codec: Codec) -> None:
    rows = outlier_rows(SHAPE.rows, 32, KvDtype.BF16)
    payload = encoded(codec, [rows], KvDtype.BF16, SHAPE)
    assert len(payload) == codec.max_wire_bytes(SHAPE) == SHAPE.rows * 32 + 4 * np.prod(SCALES[codec.name])
    of_rows = np.abs(values_of(rows, KvDtype.BF16)).max(axis=1).reshape(2, 2, 3, 4)
    largest = of_rows.max(axis=SPANNED[codec.name])
    assert (scales_of(payload, codec.name) == (largest.astype(np.float32) / np.float32(448))).all()


@pytest.mark.parametrize("extent", [(1, 1, 1, 1), (1, 1, 7, 1), (1, 1, 1, 3), (2, 1, 5, 3), (1, 2, 64, 8)])
@pytest.mark.parametrize("name", NAMES)
def test_chunks_of_any_extent(name: str, extent: tuple[int, int, int, int]) -> None:
    shape = ChunkShape(*extent, head_dim=16, dtype=KvDtype.BF16)
    rows = outlier_rows(shape.rows, 16, KvDtype.BF16)
    payload = encoded(HOST[name], [rows], KvDtype.BF16, shape)
    assert payload == encoded(ORACLES[name], [rows], KvDtype.BF16, shape)
    ours, oracles = (decoded(codec[name], payload, shape.rows, 16, KvDtype.BF16, shape) for codec in (HOST, ORACLES))
    assert ours.tobytes() == oracles.tobytes()


def test_headers_name_the_scope() -> None:
    assert [HOST[name].scale_scope for name in NAMES] == [
        ScaleScope.TOKEN_AND_HEAD,
        ScaleScope.HEAD,
        ScaleScope.TENSOR,
    ]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_errors_keep_the_bound_of_their_scope(codec: Codec, dtype: KvDtype) -> None:
    shape = ChunkShape(2, 2, 3, 4, 33, dtype)
    rows = outlier_rows(shape.rows, 33, dtype)
    before = values_of(rows, dtype).reshape(2, 2, 3, 4, 33)
    payload = encoded(codec, [rows], dtype, shape)
    after = values_of(decoded(codec, payload, shape.rows, 33, dtype, shape), dtype).reshape(before.shape)
    scale = np.abs(before).max(axis=(*SPANNED[codec.name], 4), keepdims=True) / 448
    bound = np.maximum(np.abs(before) * (2.0**-4 + 2.0**-8), scale * 2.0**-10 * 1.001)
    assert (np.abs(after - before) <= bound).all()


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_zero_scope_has_scale_one_and_its_neighbours_are_unchanged(codec: Codec) -> None:
    """Case 28."""
    values = values_of(outlier_rows(SHAPE.rows, 32, KvDtype.BF16), KvDtype.BF16).reshape(2, 2, 3, 4, 32)
    values[1, 0] = 0
    payload = encoded(codec, [rows_of(values.reshape(-1, 32), KvDtype.BF16)], KvDtype.BF16, SHAPE)
    scales = scales_of(payload, codec.name)
    assert (scales[1, 0] == 1).all()
    assert (scales > 0).all()
    after = decoded(codec, payload, SHAPE.rows, 32, KvDtype.BF16, SHAPE).reshape(2, 2, 3, 4, 32)
    assert (after[1, 0] & 0x7FFF == 0).all()


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_values_past_the_range_of_e4m3_saturate(codec: Codec) -> None:
    """Case 27, with one scale for all: no code is NaN."""
    rows = rows_of(np.linspace(-3e38, 3e38, SHAPE.rows * 32).reshape(-1, 32), KvDtype.BF16)
    payload = encoded(codec, [rows], KvDtype.BF16, SHAPE)
    assert not set(payload[: rows.size]) & {0x7F, 0xFF}
    assert np.isfinite(values_of(decoded(codec, payload, SHAPE.rows, 32, KvDtype.BF16, SHAPE), KvDtype.BF16)).all()


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_the_row_that_cannot_be_carried_is_named(codec: Codec) -> None:
    rows = outlier_rows(SHAPE.rows, 32, KvDtype.BF16)
    rows[29, 3] = 0x7FC0
    with pytest.raises(NotEncodable, match=f"{codec.name}: row 29 of 48"):
        encoded(codec, [rows], KvDtype.BF16, SHAPE)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, 1e-45, 3e38])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_corrupt_scales_are_refused(codec: Codec, scale: float) -> None:
    good = encoded(codec, [outlier_rows(SHAPE.rows, 32, KvDtype.BF16)], KvDtype.BF16, SHAPE)
    damaged = good[:-4] + np.float32(scale).tobytes()
    with pytest.raises(CorruptPayload, match=f"^{codec.name}: scales"):
        decoded(codec, damaged, SHAPE.rows, 32, KvDtype.BF16, SHAPE)
