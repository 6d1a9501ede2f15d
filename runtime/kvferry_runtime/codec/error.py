"""How much a lossy method changed the rows of a chunk.

The error of one row (one token, one head) is the mean of |x - y| over its values x, with y what was decoded, divided
by the largest |x| of the row: by how much a value is off, on average, of the scale on which attention sees the row. A
row of zeros that came back as zeros has error 0, any other one infinity. (The largest |x - y| would say nothing: it is
half of a method's coarsest step whatever the data, 0.004 for int8, 0.17 for fp4.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.base import ChunkShape, Rows
from kvferry_runtime.layout import KvDtype

MAX_ROWS = 256
"""Of a chunk that are looked at (but one of each layer), spread evenly: so a check costs much less than the codec."""


def layer_errors(rows: Rows, decoded: npt.NDArray[np.generic], shape: ChunkShape) -> list[float]:
    """The largest error among rows of each layer of the chunk.

    rows, decoded: of this shape, as unsigned integers of the dtype's width; `decoded` is one array.
    """
    starts = np.cumsum([0, *(len(array) for array in rows)])
    per_layer = shape.rows // shape.layers
    step = min(per_layer, -(-shape.rows // MAX_ROWS))
    errors = []
    for layer in range(shape.layers):
        wanted = np.arange(layer * per_layer, (layer + 1) * per_layer, step)
        source = np.concatenate(_picked(rows, starts, wanted))
        errors.append(_largest(_values(source, shape.dtype), _values(decoded[wanted], shape.dtype)))
    return errors


def _picked(rows: Rows, starts: npt.NDArray[np.intp], wanted: npt.NDArray[np.intp]) -> list[npt.NDArray[np.generic]]:
    """These rows (numbers in increasing order) out of arrays that begin at `starts`."""
    arrays, firsts = np.unique(np.searchsorted(starts, wanted, side="right") - 1, return_index=True)
    parts = zip(arrays, np.split(wanted, firsts[1:]), strict=True)
    return [rows[array][numbers - starts[array]] for array, numbers in parts]


def _largest(values: npt.NDArray[np.float32], decoded: npt.NDArray[np.float32]) -> float:
    largest = np.abs(values).max(axis=1)
    mean = np.abs(values - decoded).mean(axis=1)
    errors = np.divide(mean, largest, out=np.where(mean > 0, np.inf, 0.0), where=largest > 0)
    return float(errors.max())


def _values(bits: npt.NDArray[np.generic], dtype: KvDtype) -> npt.NDArray[np.float32]:
    if dtype is KvDtype.BF16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype is KvDtype.FP16:
        return np.ascontiguousarray(bits).view(np.float16).astype(np.float32)
    return np.ascontiguousarray(bits).view(np.float32)
