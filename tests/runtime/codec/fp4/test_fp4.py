"""What users of `fp4` rely on: the order of codes, sizes, error bounds, odd widths, and no payload misread."""

from __future__ import annotations

import numpy as np
import pytest

from kv_rows import FLOAT_DTYPES, decoded, encoded, flat_shape, is_finite, outlier_rows, round_trip, rows_of, values_of
from kvferry_runtime.codec.fp4.reference import ReferenceFp4
from kvferry_runtime.codec.registry import host_codecs
from kvferry_runtime.errors import CorruptPayload
from kvferry_runtime.layout import KvDtype

HOST = host_codecs(("fp4",))["fp4"]
CODECS = [pytest.param(HOST, id="host"), pytest.param(ReferenceFp4(), id="reference")]
BF16 = KvDtype.BF16
SIX = 6.0
"""The largest magnitude of a group with scale 1."""


def parts(payload: bytes, rows: int, head_dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and exponents."""
    width, groups = -(-head_dim // 2), -(-head_dim // 16)
    content = np.frombuffer(payload, np.uint8)
    codes, scales, exponents = np.split(content, [rows * width, rows * (width + groups)])
    return codes.reshape(rows, width), scales.reshape(rows, groups), exponents


@pytest.mark.parametrize("codec", CODECS)
def test_golden_bytes(codec: ReferenceFp4) -> None:
    """Case 30: [0.5, 6.0] at scale 1 are the codes 1 and 7, the first value in the low half: 0x71.

    Frozen: other versions of this software read these. Exponent byte 129 (2^-8) and scale 0x78 (256) are scale 1.
    """
    pair = bytes.fromhex("71 78 81")
    assert encoded(codec, [rows_of([[0.5, 6.0]], BF16)], BF16) == pair
    assert values_of(decoded(codec, pair, 1, 2, BF16), BF16).tolist() == [[0.5, 6.0]]

    row = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0, 0.0, 1.5]
    payload = bytes.fromhex("a0b1c2d3e4f5067709 7868 81")
    assert encoded(codec, [rows_of([row], BF16)], BF16) == payload
    assert values_of(decoded(codec, payload, 1, 17, BF16), BF16).tolist() == [row]


@pytest.mark.parametrize("codec", CODECS)
def test_ties_go_to_the_even_code(codec: ReferenceFp4) -> None:
    ties = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}
    row = [SIX, *ties, *(-tie for tie in ties), 0.0]
    restored = values_of(round_trip(codec, rows_of([row], BF16), BF16), BF16)[0]
    assert restored.tolist() == [SIX, *ties.values(), *(-value for value in ties.values()), 0.0]


@pytest.mark.parametrize(("head_dim", "size"), [(1, 3), (2, 3), (63, 32 + 4 + 1), (64, 37), (80, 46), (128, 73)])
@pytest.mark.parametrize("codec", CODECS)
def test_odd_widths_are_packed_to_the_ceiling_and_come_back_whole(
    codec: ReferenceFp4, head_dim: int, size: int
) -> None:
    """Case 30."""
    for dtype in FLOAT_DTYPES:
        rows = outlier_rows(7, head_dim, dtype)
        out = np.full(7 * size + 32, 0xEE, np.uint8)
        shape = flat_shape(7, head_dim, dtype)
        assert codec.encode([rows], shape, out) == codec.max_wire_bytes(shape) == 7 * size
        assert (out[7 * size :] == 0xEE).all()
        after = decoded(codec, out[: 7 * size].tobytes(), 7, head_dim, dtype)
        assert after.shape == rows.shape
        if head_dim % 2:
            codes, _, _ = parts(out[: 7 * size].tobytes(), 7, head_dim)
            assert (codes[:, -1] >> 4 == 0).all()


def bounds_hold(before: np.ndarray, after: np.ndarray) -> bool:
    """The bound that the format states."""
    of_row = np.abs(before).max(axis=1, keepdims=True)
    padded = np.pad(before, ((0, 0), (0, -before.shape[1] % 16)))
    of_group = np.abs(padded).reshape(len(before), -1, 16).max(axis=2).repeat(16, axis=1)[:, : before.shape[1]]
    return bool((np.abs(after - before) <= 0.18 * of_group + 2.0**-17 * of_row + 1e-35).all())


@pytest.mark.parametrize("head_dim", [1, 63, 80, 128, 576])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_error_bounds(dtype: KvDtype, head_dim: int) -> None:
    for factor in (1e-4, 1.0, 300.0):
        rows = rows_of(values_of(outlier_rows(200, head_dim, dtype), dtype) * factor, dtype)
        assert bounds_hold(values_of(rows, dtype), values_of(round_trip(HOST, rows, dtype), dtype))


def test_the_mean_error_is_that_of_four_bits() -> None:
    before = np.random.default_rng(9).standard_normal((512, 128))
    rows = rows_of(before, BF16)
    error = values_of(round_trip(HOST, rows, BF16), BF16) - values_of(rows, BF16)
    assert np.sqrt((error**2).mean()) < 0.1


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_zero_and_tiny_groups_and_rows(dtype: KvDtype) -> None:
    """Case 28: every scale is a number above zero, neighbours are unchanged."""
    normal = outlier_rows(24, 128, dtype)
    assert (round_trip(HOST, np.zeros_like(normal), dtype) == 0).all()

    mixed = normal.copy()
    mixed[5] = 0
    mixed[7, 16:32] = 0
    mixed[9] = rows_of([np.linspace(-1e-6, 1e-6, 128)], dtype)[0]
    mixed[11, 32:48] = rows_of([np.linspace(-1e-3, 1e-3, 16)], dtype)[0]
    payload = encoded(HOST, [mixed], dtype)
    _, scales, _ = parts(payload, 24, 128)
    assert (scales >= 1).all()
    assert (scales <= 0x7E).all()
    expected, after = round_trip(HOST, normal, dtype), decoded(HOST, payload, 24, 128, dtype)
    assert (after[5] == 0).all()
    assert (after[7, 16:32] == 0).all()
    others = [row for row in range(24) if row not in (5, 7, 9, 11)]
    assert (after[others] == expected[others]).all()
    rows = [9, 11]
    subnormal = 2.0**-24 if dtype is KvDtype.FP16 else 0
    before = values_of(mixed[rows], dtype)
    assert (np.abs(before) > 0).any()
    error = np.abs(values_of(after[rows], dtype) - before)
    assert (error[0] <= 0.18 * 1e-6 + subnormal).all()
    assert (error[1, 32:48] <= 0.2 * 1e-3).all()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_the_largest_values_stay_finite(dtype: KvDtype) -> None:
    """Six times a scale that was rounded up would be infinite."""
    largest = {KvDtype.BF16: 0x7F7F, KvDtype.FP16: 0x7BFF, KvDtype.FP32: 0x7F7FFFFF}[dtype]
    sign = 1 << (8 * dtype.itemsize - 1)
    rows = np.array([[largest, largest | sign, largest - 1, 0]], f"u{dtype.itemsize}")
    after = round_trip(HOST, rows, dtype)
    assert is_finite(after, dtype).all()
    assert bounds_hold(values_of(rows, dtype), values_of(after, dtype))


def test_bf16_keeps_its_range() -> None:
    """Case 31: through fp16, 1e5 would be infinite. Rows may differ by any factor."""
    rows = rows_of([[1e5, -1e5, 12.0, 0.0], [3e38, -3e38, 1e38, -0.0], [1e-30, -1e-30, 4e-31, 0.0]], BF16)
    after = round_trip(HOST, rows, BF16)
    assert is_finite(after, BF16).all()
    assert bounds_hold(values_of(rows, BF16), values_of(after, BF16))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("codec", CODECS)
def test_damaged_payloads_are_refused(codec: ReferenceFp4, dtype: KvDtype) -> None:
    good = encoded(codec, [outlier_rows(6, 33, dtype)], dtype)
    decoded(codec, good, 6, 33, dtype)
    top = {KvDtype.FP16: 142}.get(dtype, 254)
    scales, exponents = 6 * 17, 6 * (17 + 3)

    def damaged(**bytes_at: int) -> bytes:
        content = bytearray(good)
        for place, byte in bytes_at.items():
            content[int(place[1:])] = byte
        return bytes(content)

    cases = {
        "scale zero": damaged(**{f"_{scales + 4}": 0}),
        "scale NaN": damaged(**{f"_{scales + 4}": 0x7F}),
        "negative scale": damaged(**{f"_{scales + 17}": 0x81}),
        "scale past the range": damaged(**{f"_{scales + 3}": 0x7B, f"_{exponents + 1}": top}),
        "exponent too small": damaged(**{f"_{exponents}": 21}),
        "exponent too large": damaged(**{f"_{exponents + 5}": top + 1}),
        "a 34th code": damaged(_16=0x10),
    }
    for what, payload in cases.items():
        with pytest.raises(CorruptPayload, match=r"^fp4: "):
            decoded(codec, payload, 6, 33, dtype)
            pytest.fail(what)
