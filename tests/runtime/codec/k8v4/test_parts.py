"""Keys and values of a chunk, whatever arrays hold them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.k8v4.parts import part_rows
from kvferry_runtime.layout import KvDtype

SIZES = st.integers(1, 3)


@given(layers=SIZES, parts=st.integers(1, 2), tokens=SIZES, heads=SIZES, cuts=st.lists(st.integers(0, 60), max_size=6))
def test_each_part_has_its_rows_in_order(layers: int, parts: int, tokens: int, heads: int, cuts: list[int]) -> None:
    shape = ChunkShape(layers, parts, tokens, heads, 2, KvDtype.BF16)
    whole = np.arange(shape.rows * 2, dtype=np.uint16).reshape(-1, 2)
    arrays = np.split(whole, sorted(min(cut, shape.rows) for cut in cuts))
    found = part_rows(arrays, shape)
    by_part = whole.reshape(layers, parts, tokens * heads, 2)
    assert len(found) == parts
    for part, rows in enumerate(found):
        assert (np.concatenate(rows) == by_part[:, part].reshape(-1, 2)).all()
        assert all(np.shares_memory(array, whole) for array in rows if array.size)
