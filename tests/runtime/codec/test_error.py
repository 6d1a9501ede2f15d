"""The error of a lossy method, as it is measured on samples."""

from __future__ import annotations

import numpy as np
import pytest

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.error import MAX_ROWS, layer_errors
from kvferry_runtime.layout import KvDtype

UNSIGNED = {KvDtype.BF16: np.uint16, KvDtype.FP16: np.uint16, KvDtype.FP32: np.uint32}


def bits(values: np.ndarray, dtype: KvDtype) -> np.ndarray:
    if dtype is KvDtype.BF16:
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    kind = np.float16 if dtype is KvDtype.FP16 else np.float32
    return np.ascontiguousarray(values, kind).view(UNSIGNED[dtype])


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_the_mean_change_of_a_row_against_its_largest_value(dtype: KvDtype) -> None:
    """Of 4 values with 8 as the largest, one is off by 2: a quarter of a quarter."""
    shape = ChunkShape(2, 1, 1, 2, 4, dtype)
    values = np.array([[8, 1, 2, 4], [8, 1, 2, 4], [8, 1, 2, 4], [8, 1, 2, 4]], np.float32)
    changed = values.copy()
    changed[3, 3] = 2
    source = bits(values, dtype)
    assert layer_errors([source[:1], source[1:]], bits(changed, dtype), shape) == [0.0, 0.0625]


def test_a_row_of_zeros_must_come_back_as_zeros() -> None:
    shape = ChunkShape(2, 1, 1, 1, 2, KvDtype.FP32)
    zeros, wrong = np.zeros((2, 2), np.float32), np.array([[0, 0], [0, 1e-9]], np.float32)
    assert layer_errors([bits(zeros, KvDtype.FP32)], bits(wrong, KvDtype.FP32), shape) == [0.0, np.inf]


def test_large_chunks_are_sampled_all_over() -> None:
    """An error in every tenth row is found among a tenth of the rows, in both halves of a paged chunk."""
    shape = ChunkShape(1, 2, 10 * MAX_ROWS, 1, 8, KvDtype.FP32)
    values = np.random.default_rng(0).standard_normal((shape.rows, 8), np.float32)
    changed = values.copy()
    changed[shape.rows // 2 :] += 1
    source = bits(values, KvDtype.FP32)
    pages = [source[start : start + 16] for start in range(0, shape.rows, 16)]
    [error] = layer_errors(pages, bits(changed, KvDtype.FP32), shape)
    assert error > 0.1
    assert layer_errors(pages, source, shape) == [0.0]
