"""Host tensors as arrays of unsigned integers: the same memory, without a copy and without a change of any bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import KvDtype

if TYPE_CHECKING:
    import torch

Tensor: TypeAlias = "npt.NDArray[Any] | torch.Tensor"
Elements = npt.NDArray[np.generic]

_NAMES = {KvDtype.BF16: "bfloat16", KvDtype.FP16: "float16", KvDtype.FP32: "float32", KvDtype.UINT8: "uint8"}
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32"}
"""Torch's integers by width: numpy has no bfloat16, so that a tensor crosses over as integers."""


def elements(tensor: Tensor, dtype: KvDtype) -> Elements:
    """A view of all of `tensor`, in the element type that codecs take (see `codec.rows.element_dtype`).

    Raises:
        LayoutError: it is not C-contiguous, not in host memory, or neither of `dtype` nor of integers as wide.
    """
    array = tensor if isinstance(tensor, np.ndarray) else _from_torch(tensor, dtype)
    if array.dtype.itemsize != dtype.itemsize or (array.dtype.kind == "f" and array.dtype.name != _NAMES[dtype]):
        raise LayoutError(f"tensor of {array.dtype} where the layout says {dtype.value}")
    if not array.flags.c_contiguous:
        raise LayoutError(
            f"tensor {array.shape} with strides {array.strides} is not contiguous: its rows would be read as their "
            "neighbours; allocate the cache as one contiguous tensor"
        )
    return array.view(element_dtype(dtype))


def _from_torch(tensor: torch.Tensor, dtype: KvDtype) -> npt.NDArray[Any]:
    import torch

    if tensor.device.type != "cpu":
        raise LayoutError(f"tensor on {tensor.device}: this agent moves host memory only")
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.element_size() != dtype.itemsize or (tensor.is_floating_point() and name != _NAMES[dtype]):
        raise LayoutError(f"tensor of {name} where the layout says {dtype.value}")
    array: npt.NDArray[Any] = tensor.detach().view(getattr(torch, _INTEGERS[dtype.itemsize])).numpy()
    return array
