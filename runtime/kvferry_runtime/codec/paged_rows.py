"""Rows in the blocks of a paged cache: `Rows` as any others, told by addresses that numpy computes all at once.

A chunk may have hundreds of blocks of a few KiB each. To make, check and ask an array for each of them in Python takes
longer than to encode it. Here the arrays are made only for those who ask for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import numpy as np
import numpy.typing as npt

from kvferry_runtime.errors import LayoutError

Array = npt.NDArray[np.generic]
Addresses = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]


class BlockPool:
    """Blocks one behind the other in one array [blocks, rows, head_dim]; `Rows` says of which elements."""

    def __init__(self, blocks: Array) -> None:
        """Raises LayoutError: the array has other dimensions, or is not C-contiguous and aligned."""
        if blocks.ndim != 3 or not blocks.flags.c_contiguous or not blocks.flags.aligned:
            raise LayoutError(
                f"blocks {blocks.shape} with strides {blocks.strides}: needed is [blocks, rows, head_dim]"
            )
        self.blocks = blocks
        self.rows = blocks.shape[1]
        self.address: int = blocks.__array_interface__["data"][0]
        self.row_bytes = blocks.shape[2] * blocks.itemsize
        self.block_bytes = self.rows * self.row_bytes

    def part(self, numbers: npt.NDArray[np.uint64], first: int, count: int) -> PagedRows:
        """`count` rows, at least one, from row `first` of the first of these blocks on, which end in the last of them.

        numbers: of blocks, in order. That each is one of the pool's is up to the caller: it is not looked at here.
        """
        addresses = numbers * self.block_bytes + self.address
        counts = np.full(len(numbers), self.rows, np.int64)
        counts[-1] = first + count - (len(numbers) - 1) * self.rows
        counts[0] -= first
        addresses[0] += first * self.row_bytes
        return PagedRows(addresses, counts, (Run(self, len(numbers)),), count)

    def array(self, address: int, count: int) -> Array:
        """A view of the rows from this address on."""
        block, offset = divmod(address - self.address, self.block_bytes)
        first = offset // self.row_bytes
        return self.blocks[block, first : first + count]


@dataclass(frozen=True, slots=True)
class Run:
    """Arrays that follow each other and lie in one pool. Only the first and the last may be less than a block."""

    pool: BlockPool
    arrays: int


class PagedRows(Sequence[Array]):
    """addresses, counts: of each array's first row, and of its rows, at least one. runs: where they lie, in order.
    total: rows of all arrays."""

    __slots__ = ("addresses", "counts", "runs", "total")

    def __init__(self, addresses: Addresses, counts: Counts, runs: tuple[Run, ...], total: int) -> None:
        self.addresses = addresses
        self.counts = counts
        self.runs = runs
        self.total = total

    @classmethod
    def joined(cls, pieces: Sequence[PagedRows]) -> PagedRows:
        """One behind the other; at least one piece."""
        if len(pieces) == 1:
            return pieces[0]
        return cls(
            np.concatenate([piece.addresses for piece in pieces]),
            np.concatenate([piece.counts for piece in pieces]),
            tuple(run for piece in pieces for run in piece.runs),
            sum(piece.total for piece in pieces),
        )

    def between(self, start: int, stop: int) -> PagedRows:
        """The rows of this half-open range, which is not empty and within all."""
        ends = np.cumsum(self.counts)
        first, last = np.searchsorted(ends, (start, stop - 1), side="right").tolist()
        addresses, counts = self.addresses[first : last + 1].copy(), self.counts[first : last + 1].copy()
        runs = tuple(self._runs_between(first, last + 1))
        counts[-1] -= ends[last] - stop
        skipped = start - int(ends[first] - self.counts[first])
        counts[0] -= skipped
        addresses[0] += skipped * runs[0].pool.row_bytes
        return PagedRows(addresses, counts, runs, stop - start)

    def has(self, element: np.dtype[np.unsignedinteger], head_dim: int) -> bool:
        """Whether every row has so many of these elements."""
        return all(run.pool.blocks.dtype == element and run.pool.blocks.shape[2] == head_dim for run in self.runs)

    @property
    def writeable(self) -> bool:
        return all(run.pool.blocks.flags.writeable for run in self.runs)

    def __len__(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[Array]:
        places = zip(self.addresses.tolist(), self.counts.tolist(), strict=True)
        for run in self.runs:
            for _ in range(run.arrays):
                yield run.pool.array(*next(places))

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> list[Array]: ...
    def __getitem__(self, index: int | slice) -> Array | list[Array]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        address, count = int(self.addresses[number]), int(self.counts[number])
        return self._pool_of(number).array(address, count)

    def _pool_of(self, number: int) -> BlockPool:
        behind = 0
        for run in self.runs:
            behind += run.arrays
            if number < behind:
                return run.pool
        raise IndexError(number)

    def _runs_between(self, start: int, stop: int) -> Iterator[Run]:
        """Of a half-open range of arrays."""
        ends = np.cumsum([0, *(run.arrays for run in self.runs)]).clip(start, stop).tolist()
        for run, (first, behind) in zip(self.runs, pairwise(ends), strict=True):
            if first < behind:
                yield Run(run.pool, behind - first)
