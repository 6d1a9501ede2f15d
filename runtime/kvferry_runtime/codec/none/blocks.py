"""Rows of paged caches as they are: many blocks in one call of numpy, which needs no compiled kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.paged_rows import Addresses, Array, BlockPool, Counts, PagedRows, Run

_MANY = 16
"""Blocks of a run from which on one call for all of them is faster than one for each."""

Numbers = npt.NDArray[np.intp]


def have_long_runs(rows: PagedRows) -> bool:
    """Whether it pays to copy blocks together."""
    return len(rows) >= _MANY * len(rows.runs)


def gather(rows: PagedRows, out: Array) -> None:
    """Copy all rows to `out`, [rows, head_dim]."""
    for pool, numbers, place in _whole_blocks(rows, out):
        # "clip" writes straight into `out`; the numbers are within bounds
        np.take(pool.blocks, numbers, axis=0, out=place, mode="clip")
    for array, place in _cut_blocks(rows, out):
        place[:] = array


def scatter(values: Array, rows: PagedRows) -> None:
    """Copy `values`, [rows, head_dim], to all rows."""
    for pool, numbers, place in _whole_blocks(rows, values):
        pool.blocks[numbers] = place
    for array, place in _cut_blocks(rows, values):
        array[:] = place


def _whole_blocks(rows: PagedRows, flat: Array) -> Iterator[tuple[BlockPool, Numbers, Array]]:
    """Of each run those numbers, and their part of `flat` as [blocks, rows of one, head_dim]."""
    for run, addresses, counts, part in _runs(rows, flat):
        pool = run.pool
        first, stop = int(counts[0] < pool.rows), run.arrays - int(counts[-1] < pool.rows)
        if first < stop:
            numbers = (addresses[first:stop] - pool.address) // pool.block_bytes
            start = int(counts[0]) * first
            place = part[start : start + (stop - first) * pool.rows]
            yield pool, numbers.astype(np.intp), place.reshape(-1, *pool.blocks.shape[1:])


def _cut_blocks(rows: PagedRows, flat: Array) -> Iterator[tuple[Array, Array]]:
    """Of each run its first and its last array, with their part of `flat`, where they are less than a block."""
    for run, addresses, counts, part in _runs(rows, flat):
        for number in {0, run.arrays - 1}:
            count = int(counts[number])
            if count < run.pool.rows:
                array = run.pool.array(int(addresses[number]), count)
                yield array, part[len(part) - count :] if number else part[:count]


def _runs(rows: PagedRows, flat: Array) -> Iterator[tuple[Run, Addresses, Counts, Array]]:
    """Each with what the rows and `flat` have of it."""
    index = row = 0
    for run in rows.runs:
        arrays = slice(index, index + run.arrays)
        count = int(rows.counts[arrays].sum())
        yield run, rows.addresses[arrays], rows.counts[arrays], flat[row : row + count]
        index, row = arrays.stop, row + count
