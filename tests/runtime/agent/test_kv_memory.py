"""What the codecs read is what the engine meant: logical values in canonical order, or an error before any byte."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_settings import kv_layout
from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.agent.gather import chunk_rows
from kvferry_runtime.agent.paged import PagedCache, PagedKv
from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.none.format import NoneCodec
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape

HEADS, DIM = 8, 64
FP16 = KvLayout(1, 0, (LayerShape(2, HEADS, DIM, KvDtype.FP16),))


def chunk_bytes(memory: KvMemory, layout: KvLayout, start: int, stop: int) -> bytes:
    """The raw bytes that method `none` would send for all layers."""
    shape = layout.shapes[0]
    rows = chunk_rows(memory, shape, layout.layers, start, stop)
    out = np.zeros(len(layout.shapes) * (stop - start) * shape.bytes_per_token, np.uint8)
    extent = ChunkShape.of(shape, len(layout.shapes), stop - start)
    assert NoneCodec().encode(rows, extent, out) == out.size
    return out.tobytes()


STRIDED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "every second token": lambda base: np.repeat(base, 2, axis=1)[:, ::2],
    "transposed": lambda base: np.ascontiguousarray(base.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
    "Fortran order": lambda base: np.asfortranarray(base),
    "reversed": lambda base: base[:, ::-1],
    "half a row": lambda base: np.repeat(base, 2, axis=3)[..., :DIM],
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in STRIDED for kind in ("numpy", "torch") if (name, kind) != ("reversed", "torch")],
)
def test_a_strided_view_is_refused_before_anything_is_sent(name: str, kind: str) -> None:
    """Case 24."""
    base = np.random.default_rng(24).standard_normal((2, 4, HEADS, DIM)).astype(np.float16)
    view = STRIDED[name](base)
    if kind == "torch":
        strided = torch.from_numpy(view)
        assert not strided.is_contiguous()
        with pytest.raises(LayoutError, match="not contiguous"):
            ContiguousKv(FP16, [strided])
    else:
        with pytest.raises(LayoutError, match="not contiguous"):
            ContiguousKv(FP16, [view])


def test_rows_of_an_engine_that_are_strided_are_refused_by_the_codec() -> None:
    class Strided:
        def rows(self, layer: int, part: int, token_start: int, token_stop: int) -> list[np.ndarray]:
            return [np.zeros((2 * (token_stop - token_start) * HEADS, DIM), np.uint16)[::2]]

    with pytest.raises(LayoutError, match="C-contiguous"):
        chunk_bytes(Strided(), FP16, 0, 4)


def test_a_slice_of_a_larger_cache_is_read_where_it_lies() -> None:
    whole = np.arange(2 * 10 * HEADS * DIM, dtype=np.uint16).reshape(2, 10, HEADS, DIM)
    memory = ContiguousKv(FP16, [whole.view(np.float16)])
    assert chunk_bytes(memory, FP16, 3, 7) == whole[:, 3:7].tobytes()


def test_an_empty_range_has_empty_rows() -> None:
    """Case 24: it completes."""
    memory = ContiguousKv(FP16, [np.zeros((2, 0, HEADS, DIM), np.float16)])
    assert [len(rows) for rows in chunk_rows(memory, FP16.shapes[0], FP16.layers, 0, 0)] == [0, 0]


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (torch.bfloat16, KvDtype.BF16),
        (torch.float16, KvDtype.FP16),
        (torch.float32, KvDtype.FP32),
        (torch.uint8, KvDtype.UINT8),
    ],
)
def test_torch_tensors_are_shared_bit_for_bit(dtype: torch.dtype, kind: KvDtype) -> None:
    layout = KvLayout(1, 0, (LayerShape(2, 2, 8, kind),))
    tensor = (torch.arange(2 * 5 * 2 * 8).reshape(2, 5, 2, 8) % 251).to(dtype)
    memory = ContiguousKv(layout, [tensor])
    assert chunk_bytes(memory, layout, 1, 4) == tensor[:, 1:4].contiguous().view(torch.uint8).numpy().tobytes()
    memory.rows(0, 0, 2, 3)[0][:] = 0
    assert (tensor[0, 2] == 0).all()


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (np.zeros((2, 4, HEADS, DIM), np.float32), "of float32 where the layout says fp16"),
        (torch.zeros((2, 4, HEADS, DIM)), "of float32 where the layout says fp16"),
        (torch.zeros((2, 4, HEADS, DIM), dtype=torch.bfloat16), "of bfloat16 where the layout says fp16"),
        (np.zeros((1, 4, HEADS, DIM), np.float16), "needed is"),
        (np.zeros((2, 4, DIM, HEADS), np.float16), "needed is"),
        (np.zeros((2, 4, HEADS * DIM), np.float16), "needed is"),
        (torch.zeros((2, 4, HEADS, DIM), dtype=torch.float16, device="meta"), "host memory only"),
    ],
)
def test_tensors_that_do_not_fit(tensor: object, text: str) -> None:
    with pytest.raises(LayoutError, match=text):
        ContiguousKv(FP16, [tensor])  # type: ignore[list-item]


@pytest.mark.parametrize(("part", "start", "stop"), [(2, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 3, 2), (0, 0, 9)])
def test_rows_outside_of_the_memory(part: int, start: int, stop: int) -> None:
    contiguous = ContiguousKv(FP16, [np.zeros((2, 8, HEADS, DIM), np.float16)])
    paged = PagedKv(PagedCache(FP16, [np.zeros((4, 2, 4, HEADS, DIM), np.float16)]), [3, 1])
    for memory in (contiguous, paged):
        with pytest.raises(LayoutError):
            memory.rows(0, part, start, stop)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_paged_and_contiguous_memory_give_the_same_chunk(data: st.DataObject) -> None:
    layout = kv_layout(2)
    block_tokens = data.draw(st.integers(1, 5))
    tokens = data.draw(st.integers(1, 17))
    needed = -(-tokens // block_tokens)
    block_ids = data.draw(st.permutations(range(needed + 2)))[:needed]
    start = data.draw(st.integers(0, tokens - 1))
    stop = data.draw(st.integers(start + 1, tokens))

    plain = [np.random.default_rng(layer).integers(0, 2**16, (2, tokens, 2, 8), np.uint16) for layer in layout.layers]
    caches = [np.zeros((needed + 2, 2, block_tokens, 2, 8), np.uint16) for _ in layout.layers]
    paged = PagedKv(PagedCache(layout, caches), block_ids)
    for position in range(tokens):
        block, offset = block_ids[position // block_tokens], position % block_tokens
        for source, cache in zip(plain, caches, strict=True):
            cache[block, :, offset] = source[:, position]
    assert chunk_bytes(paged, layout, start, stop) == chunk_bytes(ContiguousKv(layout, plain), layout, start, stop)


@pytest.mark.parametrize("block_ids", [[0, 4], [-1], [1, 1]])
def test_blocks_that_a_request_cannot_have(block_ids: list[int]) -> None:
    cache = PagedCache(FP16, [np.zeros((4, 2, 4, HEADS, DIM), np.float16)])
    with pytest.raises(LayoutError, match="not in a cache of 4"):
        PagedKv(cache, block_ids)


def test_a_cache_that_is_no_cache() -> None:
    for shape in [(4, 2, 4, HEADS), (4, 2, 0, HEADS, DIM), (4, 1, 4, HEADS, DIM)]:
        with pytest.raises(LayoutError, match="needed is"):
            PagedCache(FP16, [np.zeros(shape, np.float16)])
