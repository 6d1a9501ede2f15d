"""The rows of one chunk in canonical order, taken from an engine's memory as views."""

from __future__ import annotations

from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.codec.base import Rows
from kvferry_runtime.codec.rows import joined_rows, row_count
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import LayerShape


def chunk_rows(memory: KvMemory, shape: LayerShape, layers: range, token_start: int, token_stop: int) -> Rows:
    """Views in the order [layer][part][token][head] for a half-open range of tokens.

    layers: global numbers; each of them has this shape.

    Raises:
        LayoutError: the engine's memory gave another number of rows than the range has. (What each array must be, is
            checked by the codecs before they touch a byte.)
    """
    pieces: list[Rows] = []
    expected = (token_stop - token_start) * shape.heads
    for layer in layers:
        for part in range(shape.parts):
            rows = memory.rows(layer, part, token_start, token_stop)
            found = row_count(rows)
            if found != expected:
                raise LayoutError(
                    f"layer {layer} part {part} tokens {token_start} to {token_stop}: the engine's memory gave {found} "
                    f"rows, {expected} are needed"
                )
            pieces.append(rows)
    return joined_rows(pieces)
