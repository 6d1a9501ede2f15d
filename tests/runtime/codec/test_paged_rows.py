"""Rows in blocks are rows as any others: to every codec, and to whoever asks for the arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_pairs import ORACLES
from kv_rows import Elements, outlier_rows
from kvferry_runtime.codec.base import ChunkShape, Codec
from kvferry_runtime.codec.paged_rows import BlockPool, PagedRows
from kvferry_runtime.codec.registry import host_codecs
from kvferry_runtime.codec.rows import check_rows, joined_rows
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import KvDtype

HOST = host_codecs()
CODECS = [
    *(pytest.param(codec, id=f"host-{name}") for name, codec in HOST.items()),
    *(pytest.param(oracle, id=f"reference-{name}") for name, oracle in ORACLES.items() if name != "none"),
]
WIDTH = 17


@dataclass
class Chunk:
    """Keys and values of some layers in a pool each, as paged rows; `whole` are the same rows in one array."""

    shape: ChunkShape
    pools: list[BlockPool]
    rows: PagedRows

    @property
    def whole(self) -> Elements:
        return np.concatenate(list(self.rows))


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    """Blocks in any order; the chunk starts and ends within one. Many of them, or a single one."""
    layers, heads, block_tokens = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    blocks = draw(st.integers(1, 40))
    first = draw(st.integers(0, block_tokens - 1))
    tokens = draw(st.integers(max(1, (blocks - 1) * block_tokens - first + 1), blocks * block_tokens - first))
    dice = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    shape = ChunkShape(layers, 2, tokens, heads, WIDTH, KvDtype.BF16)
    pools, pieces = [], []
    for layer in range(layers):
        values = outlier_rows((blocks + 2) * 2 * block_tokens * heads, WIDTH, KvDtype.BF16, seed=layer)
        pools.append(BlockPool(values.reshape((blocks + 2) * 2, block_tokens * heads, WIDTH)))
        order = dice.permutation(blocks + 2)[:blocks].astype(np.uint64)
        pieces += [pools[-1].part(order * 2 + part, first * heads, tokens * heads) for part in range(2)]
    return Chunk(shape, pools, PagedRows.joined(pieces))


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=25, deadline=None)
@given(chunk=chunks())
def test_the_bytes_are_those_of_one_array(codec: Codec, chunk: Chunk) -> None:
    """And what is decoded lands in the same places, and nowhere else."""
    out, expected = (np.zeros(codec.max_wire_bytes(chunk.shape), np.uint8) for _ in range(2))
    whole = chunk.whole
    length = codec.encode(chunk.rows, chunk.shape, out)
    assert length == codec.encode([whole], chunk.shape, expected)
    assert out.tobytes() == expected.tobytes()
    codec.decode(out[:length], chunk.shape, [whole])
    untouched = [_others(pool, chunk.rows) for pool in chunk.pools]
    codec.decode(out[:length], chunk.shape, chunk.rows)
    assert chunk.whole.tobytes() == whole.tobytes()
    assert [_others(pool, chunk.rows) for pool in chunk.pools] == untouched


def _others(pool: BlockPool, rows: PagedRows) -> bytes:
    """What the pool holds beside these rows."""
    rest = pool.blocks.copy().reshape(-1, WIDTH)
    for address, count in zip(rows.addresses.tolist(), rows.counts.tolist(), strict=True):
        start = (address - pool.address) // pool.row_bytes
        if 0 <= start < len(rest):
            rest[start : start + count] = 0
    return rest.tobytes()


@given(chunks(), st.data())
def test_a_range_of_rows_is_that_range(chunk: Chunk, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, chunk.rows.total - 1))
    stop = data.draw(st.integers(start + 1, chunk.rows.total))
    found = chunk.rows.between(start, stop)
    assert found.total == sum(map(len, found)) == stop - start
    assert np.array_equal(np.concatenate(list(found)), chunk.whole[start:stop])
    assert all(len(array) for array in found)


@given(chunks())
def test_it_is_a_sequence_of_views(chunk: Chunk) -> None:
    arrays = list(chunk.rows)
    assert len(chunk.rows) == len(arrays)
    for number, array in enumerate(arrays):
        for same in (chunk.rows[number], chunk.rows[number - len(arrays)]):
            assert np.array_equal(same, array)
            assert any(np.shares_memory(same, pool.blocks) for pool in chunk.pools)
    assert [len(array) for array in chunk.rows[1:]] == [len(array) for array in arrays[1:]]
    with pytest.raises(IndexError):
        chunk.rows[len(arrays)]


def test_rows_of_other_kinds_are_refused() -> None:
    """As arrays would be, one by one."""
    shape = ChunkShape(1, 1, 8, 1, WIDTH, KvDtype.BF16)
    numbers = np.arange(2, dtype=np.uint64)

    def rows(blocks: Elements, count: int = 8) -> PagedRows:
        return BlockPool(blocks).part(numbers, 0, count)

    check_rows(rows(np.zeros((2, 4, WIDTH), np.uint16)), shape)
    for wrong in (np.zeros((2, 4, WIDTH), np.uint32), np.zeros((2, 4, WIDTH + 1), np.uint16)):
        with pytest.raises(LayoutError):
            check_rows(rows(wrong), shape)
    with pytest.raises(LayoutError, match="hold 7 rows"):
        check_rows(rows(np.zeros((2, 4, WIDTH), np.uint16), 7), shape)
    two_widths = joined_rows([rows(np.zeros((2, 2, WIDTH), np.uint16), 4), rows(np.zeros((2, 2, 3), np.uint16), 4)])
    with pytest.raises(LayoutError):
        check_rows(two_widths, shape)


@pytest.mark.parametrize("codec", CODECS)
def test_blocks_that_are_read_only_are_not_written(codec: Codec) -> None:
    blocks = outlier_rows(32, WIDTH, KvDtype.BF16).reshape(4, 8, WIDTH)
    blocks.flags.writeable = False
    rows = joined_rows([BlockPool(blocks).part(np.array([2 + part], np.uint64), 0, 8) for part in range(2)])
    shape = ChunkShape(1, 2, 8, 1, WIDTH, KvDtype.BF16)
    out = np.zeros(codec.max_wire_bytes(shape), np.uint8)
    length = codec.encode(rows, shape, out)
    with pytest.raises(LayoutError, match="read-only"):
        codec.decode(out[:length], shape, rows)


@pytest.mark.parametrize(
    "blocks",
    [np.zeros((4, 8), np.uint16), np.zeros((4, 8, 6), np.uint16)[:, :, ::2], np.zeros((4, 8, 6), np.uint16)[::2]],
)
def test_a_pool_that_is_not_contiguous_is_refused(blocks: Elements) -> None:
    with pytest.raises(LayoutError, match="blocks"):
        BlockPool(blocks)
