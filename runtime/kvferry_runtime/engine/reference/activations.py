"""Hidden states as arrays that travel between stages, without loss. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


def to_array(states: torch.Tensor) -> Array:
    """[tokens or rows, hidden] of a chunk of one prompt [1, tokens, hidden] or of a decode pass [rows, 1, hidden].

    bfloat16, which numpy does not know, as the uint16 of its bits.
    """
    flat = states.flatten(0, 1).cpu().contiguous()
    if flat.dtype is torch.bfloat16:
        bits: Array = flat.view(torch.int16).numpy().view(np.uint16)
        return bits
    values: Array = flat.numpy()
    return values


def to_states(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """A copy as hidden states [tokens or rows, hidden] of `dtype` on the CPU.

    In torch's own memory: some kernels add up in another order where a matrix lies elsewhere relative to a cache line.

    Raises:
        ValueError: the array holds another type.
    """
    if dtype is torch.bfloat16 and array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).clone()
    states = torch.from_numpy(array).clone()
    if states.dtype is not dtype:
        raise ValueError(f"an activation of {array.dtype}, this stage computes in {dtype}")
    return states
