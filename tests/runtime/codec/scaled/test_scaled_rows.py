"""What users of `int8` and `fp8` rely on: sizes, error bounds, odd values, and no payload misread."""

from __future__ import annotations

import numpy as np
import pytest

from kv_rows import FLOAT_DTYPES, decoded, encoded, flat_shape, is_finite, outlier_rows, round_trip, rows_of, values_of
from kvferry_runtime.codec.registry import host_codecs
from kvferry_runtime.errors import CodecRefused, CorruptPayload, NotEncodable
from kvferry_runtime.layout import KvDtype, LayerShape

CODECS = host_codecs()
LOSSY = ("int8", "fp8")
ROUNDING = {KvDtype.BF16: 2.0**-9, KvDtype.FP16: 2.0**-12, KvDtype.FP32: 2.0**-25}
"""Half a unit in the last place of each dtype, relative; doubled for the fp32 arithmetic on the way."""


def bounds_hold(name: str, before: np.ndarray, after: np.ndarray, dtype: KvDtype) -> bool:
    """The error bounds that the formats state, with `dtype`'s own rounding on top."""
    largest = np.abs(before).max(axis=1, keepdims=True)
    error = np.abs(after - before)
    rounding = np.abs(after) * ROUNDING[dtype] * 2 + (2.0**-25 if dtype is KvDtype.FP16 else 0)
    if name == "int8":
        return bool((error <= largest / 127 * 0.50001 + rounding).all())
    scale = largest / 448
    return bool((error <= np.maximum(np.abs(before) * 2.0**-4, scale * 2.0**-10) * 1.00001 + rounding).all())


@pytest.mark.parametrize("head_dim", [1, 63, 128])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", LOSSY)
def test_error_bounds(name: str, dtype: KvDtype, head_dim: int) -> None:
    for factor in (1e-4, 1.0, 300.0):
        rows = rows_of(values_of(outlier_rows(200, head_dim, dtype), dtype) * factor, dtype)
        before, after = values_of(rows, dtype), values_of(round_trip(CODECS[name], rows, dtype), dtype)
        assert bounds_hold(name, before, after, dtype)


@pytest.mark.parametrize("dtype", [KvDtype.BF16, KvDtype.FP16])
@pytest.mark.parametrize("name", LOSSY)
def test_a_row_of_one_element_comes_back_as_it_was(name: str, dtype: KvDtype) -> None:
    """Its scale carries all of it, for every value above the bound of the scale."""
    patterns = np.arange(65536, dtype=np.uint16).reshape(-1, 1)
    patterns = patterns[is_finite(patterns, dtype)[:, 0]]
    after = round_trip(CODECS[name], patterns, dtype)
    magnitudes = np.abs(values_of(patterns, dtype))[:, 0]
    kept = (magnitudes >= 1e-32) | ((magnitudes == 0) & (patterns[:, 0] == 0))
    assert (after[kept] == patterns[kept]).all()
    assert (np.abs(values_of(after, dtype))[:, 0] <= magnitudes * 1.07 + 2.0**-125).all()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", LOSSY)
def test_size_is_exact_and_nothing_behind_it_is_written(name: str, dtype: KvDtype) -> None:
    codec = CODECS[name]
    rows = outlier_rows(10, 64, dtype)
    out = np.full(10 * 68 + 32, 0xEE, np.uint8)
    shape = flat_shape(10, 64, dtype)
    assert codec.encode([rows], shape, out) == codec.max_wire_bytes(shape) == 10 * 68
    assert (out[10 * 68 :] == 0xEE).all()


@pytest.mark.parametrize("dtype", [KvDtype.BF16, KvDtype.FP32])
def test_values_past_the_range_of_e4m3_saturate(dtype: KvDtype) -> None:
    """Case 27: a plain cast turns 465 and more into NaN."""
    values = np.array([448, 449, 463, 464, 465, 480, 500, 1e4, 3e38])
    rows = rows_of(np.concatenate([np.stack([values, -values], axis=1), [[448, 449], [-465, 464]]]), dtype)
    payload = encoded(CODECS["fp8"], [rows], dtype)
    codes = np.frombuffer(payload, np.uint8)[: rows.size]
    assert not set(codes.tolist()) & {0x7F, 0xFF}
    after = values_of(decoded(CODECS["fp8"], payload, *rows.shape, dtype), dtype)
    before = values_of(rows, dtype)
    assert np.isfinite(after).all()
    assert (np.sign(after) == np.sign(before)).all()
    assert (np.abs(after - before) <= np.abs(before) * 2.0**-4).all()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", LOSSY)
def test_zero_and_tiny_rows(name: str, dtype: KvDtype) -> None:
    """Case 28."""
    codec = CODECS[name]
    normal = outlier_rows(2 * 16 * 8, 128, dtype)
    assert (round_trip(codec, np.zeros_like(normal), dtype) == 0).all()

    mixed = normal.copy()
    mixed[5] = 0
    tiny = np.linspace(-1e-6, 1e-6, 128)
    mixed[9] = rows_of([tiny], dtype)[0]
    expected, after = round_trip(codec, normal, dtype), round_trip(codec, mixed, dtype)
    assert (after[5] == 0).all()
    others = [row for row in range(len(normal)) if row not in (5, 9)]
    assert (after[others] == expected[others]).all()
    assert bounds_hold(name, values_of(mixed[9:10], dtype), values_of(after[9:10], dtype), dtype)

    scales = np.frombuffer(encoded(codec, [mixed], dtype), np.uint8)[mixed.size :].view("<f4")
    assert (scales > 0).all()
    assert np.isfinite(scales).all()
    assert scales[5] == 1


@pytest.mark.parametrize("name", LOSSY)
def test_rows_of_subnormals_become_zeros(name: str) -> None:
    rows = np.array([[0x0001, 0x807F, 0x0000, 0x007F]], np.uint16)
    assert (values_of(round_trip(CODECS[name], rows, KvDtype.BF16), KvDtype.BF16) == 0).all()


@pytest.mark.parametrize("name", LOSSY)
def test_bf16_keeps_its_range(name: str) -> None:
    """Case 31: through fp16, 1e5 would be infinite."""
    rows = rows_of([[1e5, -1e5, 12.0, 0.0], [3e38, -3e38, 1e38, -0.0], [1e-30, -1e-30, 4e-31, 0.0]], KvDtype.BF16)
    after = values_of(round_trip(CODECS[name], rows, KvDtype.BF16), KvDtype.BF16)
    assert np.isfinite(after).all()
    assert bounds_hold(name, values_of(rows, KvDtype.BF16), after, KvDtype.BF16)


@pytest.mark.parametrize("name", LOSSY)
def test_the_largest_values_of_each_dtype_stay_finite(name: str) -> None:
    for dtype, bits in ((KvDtype.BF16, 0x7F7F), (KvDtype.FP16, 0x7BFF), (KvDtype.FP32, 0x7F7FFFFF)):
        sign = 1 << (8 * dtype.itemsize - 1)
        rows = np.array([[bits, bits | sign, bits - 1]], f"u{dtype.itemsize}")
        after = round_trip(CODECS[name], rows, dtype)
        assert is_finite(after, dtype).all()
        assert bounds_hold(name, values_of(rows, dtype), values_of(after, dtype), dtype)


@pytest.mark.parametrize("position", [(0, 0), (3, 63), (7, 31)])
@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (KvDtype.BF16, 0x7F80), (KvDtype.BF16, 0xFF80), (KvDtype.BF16, 0x7F81), (KvDtype.FP16, 0xFC00),
        (KvDtype.FP16, 0x7E00), (KvDtype.FP32, 0x7F800000), (KvDtype.FP32, 0xFFC00000),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", LOSSY)
def test_a_nan_or_infinity_anywhere_is_refused(name: str, dtype: KvDtype, bits: int, position: tuple[int, int]) -> None:
    rows = outlier_rows(8, 64, dtype)
    rows[position] = bits
    with pytest.raises(NotEncodable, match=rf"{name}: row {position[0]} of 8"):
        encoded(CODECS[name], [rows], dtype)


@pytest.mark.parametrize("name", LOSSY)
def test_latent_and_mixed_widths(name: str) -> None:
    """A latent cache of width 576 goes; opaque bytes are refused by name, before anything is written."""
    codec = CODECS[name]
    latent = outlier_rows(4 * 16, 576, KvDtype.BF16)
    assert bounds_hold(
        name,
        values_of(latent, KvDtype.BF16),
        values_of(round_trip(codec, latent, KvDtype.BF16), KvDtype.BF16),
        KvDtype.BF16,
    )
    packed = np.zeros((64, 132), np.uint8)
    assert "uint8" in str(codec.supports(LayerShape(1, 1, 132, KvDtype.UINT8)))
    with pytest.raises(CodecRefused, match=f"{name} carries bf16, fp16 and fp32, not uint8"):
        codec.encode([packed], flat_shape(64, 132, KvDtype.UINT8), np.zeros(packed.size * 2, np.uint8))
    for dtype in FLOAT_DTYPES:
        assert all(codec.supports(LayerShape(2, 8, width, dtype)) is None for width in (1, 63, 576))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", LOSSY)
def test_damaged_payloads_are_refused(name: str, dtype: KvDtype) -> None:
    codec = CODECS[name]
    good = encoded(codec, [outlier_rows(6, 32, dtype)], dtype)
    decoded(codec, good, 6, 32, dtype)
    void = 0x80 if name == "int8" else 0xFF
    damaged = {
        "shorter": good[:-1],
        "longer": good + b"\0",
        "empty": b"",
        "void code": good[:40] + bytes([void]) + good[41:],
    }
    for scale in (0.0, -1.0, np.nan, np.inf, -np.inf, 1e-45, 3e38):
        damaged[f"scale {scale}"] = good[: 6 * 32 + 8] + np.float32(scale).tobytes() + good[6 * 32 + 12 :]
    for what, payload in damaged.items():
        with pytest.raises(CorruptPayload, match=f"^{name}: "):
            decoded(codec, payload, 6, 32, dtype)
            pytest.fail(what)


@pytest.mark.parametrize("name", LOSSY)
def test_golden_bytes(name: str) -> None:
    """Frozen: other versions of this software read these."""
    values = [[0.0, 1.0, -1.0, 0.5, 127.0], [-0.0, 0.0, 0.0, 0.0, 0.0], [448.0, -448.0, 0.875, 26.0, 17.0]]
    golden = {
        "int8": "0001ff007f 0000000000 7f81000705 0000803f 0000803f 87c36140",
        "fp8": "0046c63e7e 8000000000 7efe365d58 9224913e 0000803f 0000803f",
    }
    payload = bytes.fromhex(golden[name])
    assert encoded(CODECS[name], [rows_of(values, KvDtype.BF16)], KvDtype.BF16) == payload
    restored = {
        "int8": [[0, 1, -1, 0, 127], [0, 0, 0, 0, 0], [448, -448, 0, 24.75, 17.625]],
        "fp8": [[0, 0.9921875, -0.9921875, 0.49609375, 127], [0, 0, 0, 0, 0], [448, -448, 0.875, 26, 16]],
    }
    assert values_of(decoded(CODECS[name], payload, 3, 5, KvDtype.BF16), KvDtype.BF16).tolist() == restored[name]
