"""The rows of one chunk in canonical order, taken from an engine's memory as views."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.codec.base import Rows
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import LayerShape


def chunk_rows(memory: KvMemory, shape: LayerShape, layers: range, token_start: int, token_stop: int) -> Rows:
    """Views in the order [layer][part][token][head] for a half-open range of tokens.

    layers: global numbers; each of them has this shape.

    Raises:
        LayoutError: the engine's memory gave another number of rows than the range has. (What each array must be, is
            checked by the codecs before they touch a byte.)
    """
    chunk: list[npt.NDArray[np.generic]] = []
    expected = (token_stop - token_start) * shape.heads
    for layer in layers:
        for part in range(shape.parts):
            arrays = memory.rows(layer, part, token_start, token_stop)
            found = sum(len(array) for array in arrays)
            if found != expected:
                raise LayoutError(
                    f"layer {layer} part {part} tokens {token_start} to {token_stop}: the engine's memory gave {found} "
                    f"rows, {expected} are needed"
                )
            chunk.extend(arrays)
    return chunk
