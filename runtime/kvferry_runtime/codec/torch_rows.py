"""The rows of a chunk as torch tensors, for the reference methods."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from kvferry_runtime.codec.base import Rows
from kvferry_runtime.layout import KvDtype

TORCH_DTYPES: Mapping[KvDtype, torch.dtype] = {
    KvDtype.BF16: torch.bfloat16,
    KvDtype.FP16: torch.float16,
    KvDtype.FP32: torch.float32,
}


def float_tensor(array: npt.NDArray[np.generic], dtype: KvDtype) -> torch.Tensor:
    """The same memory as a float tensor; torch takes signed integers only, numpy has no bf16."""
    signed = array.view(np.dtype(f"i{dtype.itemsize}"))
    return torch.from_numpy(signed).view(TORCH_DTYPES[dtype])


def scatter(values: torch.Tensor, dtype: KvDtype, rows: Rows) -> None:
    """Round fp32 [rows, head_dim] to `dtype` and write them into the arrays, one after the other."""
    restored = values.to(TORCH_DTYPES[dtype])
    start = 0
    for array in rows:
        float_tensor(array, dtype).copy_(restored[start : start + len(array)])
        start += len(array)
