"""The rows of a chunk, apart by part (keys, values)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.base import ChunkShape, Rows
from kvferry_runtime.codec.paged_rows import PagedRows


def part_rows(rows: Rows, shape: ChunkShape) -> list[Rows]:
    """For each part its rows, in order, as views; an array that holds rows of several parts is cut.

    rows: such that `check_rows` has passed them.
    """
    run = shape.tokens * shape.heads
    if isinstance(rows, PagedRows):
        runs = [rows.between(start, start + run) for start in range(0, shape.rows, run)]
        return [PagedRows.joined(runs[part :: shape.parts]) for part in range(shape.parts)]
    parts: list[list[npt.NDArray[np.generic]]] = [[] for _ in range(shape.parts)]
    run_number, left = 0, run
    for array in rows:
        rest = array
        while len(rest) > left:
            parts[run_number % shape.parts].append(rest[:left])
            rest, run_number, left = rest[left:], run_number + 1, run
        parts[run_number % shape.parts].append(rest)
        left -= len(rest)
    return [*parts]
