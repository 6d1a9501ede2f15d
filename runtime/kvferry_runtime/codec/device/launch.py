"""How kernels on a GPU are declared and launched.

`enable_fp_fusion=False` at every launch: a multiplication and an addition made into one would round once instead of
twice, and change bytes. For the same reason divisions are `tl.div_rn`: `/` is only an approximation on a GPU.

With TRITON_INTERPRET=1 set before Triton is imported, the kernels run on host tensors in Triton's interpreter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import DeviceRows
from kvferry_runtime.layout import KvDtype

_VARYING = ("total", "tokens", "first_token", "first_group", "room", "found")
_ELEMENTS_A_PROGRAM = 4096
_WARPS = 4

BF16, FP16, FP32 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""Kinds of float, as kernels are told."""

_KINDS = {KvDtype.BF16: 0, KvDtype.FP16: 1, KvDtype.FP32: 2}
_ELEMENTS = {1: tl.uint8, 2: tl.uint16, 4: tl.uint32}


def kernel(function: Callable[..., Any]) -> Any:
    """An entry point, or a part of one.

    Triton compiles a kernel anew for arguments that are 1 or multiples of 16: not for those that differ between
    chunks and say nothing about where elements lie.
    """
    names = inspect.signature(function).parameters
    return triton.jit(function, do_not_specialize=[name for name in _VARYING if name in names])


@dataclass(frozen=True, slots=True)
class RowGrid:
    """How a chunk's rows are shared out: `programs` of `rows` rows, each padded to `width` elements."""

    programs: int
    rows: int
    width: int


def row_grid(shape: ChunkShape) -> RowGrid:
    """The grid for kernels that treat each row by itself, all its elements at once."""
    return grid_of(shape.rows, shape.head_dim)


def grid_of(rows: int, columns: int, elements: int = 1) -> RowGrid:
    """The grid for so many rows of so many columns of so many elements each."""
    width = triton.next_power_of_2(columns)
    together = max(1, _ELEMENTS_A_PROGRAM // (width * elements))
    return RowGrid(programs=-(-rows // together), rows=together, width=width)


def launch(
    entry: Any, rows: DeviceRows, shape: ChunkShape, payload: Any, status: Any, grid: RowGrid, **constants: Any
) -> None:
    """Queue `entry` with the arguments that all kernels of rows share, and its own `constants`."""
    entry[(grid.programs,)](
        rows.planes, rows.blocks, payload, status,
        shape.rows, shape.tokens, rows.first_token, rows.block_stride, rows.token_stride, rows.head_stride,
        HEADS=shape.heads, HEAD_DIM=shape.head_dim, BLOCK_TOKENS=rows.block_tokens, ALIGNED=rows.aligned,
        ELEMENT=element_type(shape.dtype), BYTES=shape.dtype.itemsize, ROWS=grid.rows, WIDTH=grid.width,
        num_warps=_WARPS, enable_fp_fusion=False, **constants,
    )  # fmt: skip


def launch_flat(entry: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Queue a kernel that does not look at rows where the engine has them."""
    entry[(programs,)](*arguments, num_warps=_WARPS, enable_fp_fusion=False, **constants)


def float_kind(dtype: KvDtype) -> int:
    """`KIND` of kernels that take floats."""
    return _KINDS[dtype]


def element_type(dtype: KvDtype) -> Any:
    """`ELEMENT` of kernels: the unsigned integer of the dtype's width."""
    return _ELEMENTS[dtype.itemsize]
