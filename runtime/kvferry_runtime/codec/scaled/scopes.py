"""Which rows of a chunk share a scale, for methods with one fp32 scale for many elements. Pure.

Rows lie in the order [layer][part][token][head]; scales lie in the same order, without the dimensions they span:
[layer][part][token][head], [layer][part][head] or [layer][part].
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.base import ChunkShape, ScaleScope

Number = TypeVar("Number", bound=np.generic)


def scale_count(scope: ScaleScope, shape: ChunkShape) -> int:
    """How many scales a chunk of this shape has."""
    planes = shape.layers * shape.parts
    return {
        ScaleScope.TOKEN_AND_HEAD: shape.rows,
        ScaleScope.HEAD: planes * shape.heads,
        ScaleScope.TENSOR: planes,
    }[scope]


def largest_in_scope(of_rows: npt.NDArray[Number], scope: ScaleScope, shape: ChunkShape) -> npt.NDArray[Number]:
    """From one number for each row [rows] the largest for each scale [scales]."""
    if scope is ScaleScope.TOKEN_AND_HEAD:
        return of_rows
    planes = of_rows.reshape(-1, shape.tokens, shape.heads)
    largest: npt.NDArray[Number] = planes.max(axis=1 if scope is ScaleScope.HEAD else (1, 2))
    return largest.reshape(-1)


def spread_over_rows(of_scales: npt.NDArray[Number], scope: ScaleScope, shape: ChunkShape) -> npt.NDArray[Number]:
    """From one number for each scale [scales] one for each row [rows]."""
    if scope is ScaleScope.TOKEN_AND_HEAD:
        return of_scales
    planes = of_scales.reshape(-1, 1, shape.heads if scope is ScaleScope.HEAD else 1)
    rows = np.empty((len(planes), shape.tokens, shape.heads), of_scales.dtype)
    rows[:] = planes
    return rows.reshape(-1)
