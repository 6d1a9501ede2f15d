"""The payload of sparse chunks: exact rows of exactly the kept tokens, and nothing of a payload that does not fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_rows import Elements
from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.codec.sparse.payload import KeptTokens, largest_raw_bytes, pack, read_kept, unpack
from kvferry_runtime.errors import CorruptPayload, KvferryError, LayoutError
from kvferry_runtime.layout import KvDtype
from sparse_chunks import any_rows, shapes

SMALL = ChunkShape(layers=2, parts=2, tokens=10, heads=3, head_dim=4, dtype=KvDtype.BF16)


def chunk(shape: ChunkShape, seed: int) -> tuple[Elements, KeptTokens]:
    """All bits of all rows at random [layer][part][token][head], and random tokens to keep."""
    dice = np.random.default_rng(seed)
    mask = dice.random((shape.layers, shape.tokens)) < dice.random()
    return any_rows(shape, seed), KeptTokens(mask, dice.integers(0, 1 << 31, shape.layers))


def rows(whole: Elements) -> Elements:
    return whole.reshape(-1, whole.shape[-1])


def packed(shape: ChunkShape, whole: Elements, kept: KeptTokens) -> bytes:
    out = np.full(shape.raw_bytes + 64 + 5 * shape.layers * shape.tokens, 0xA5, np.uint8)
    return out[: pack([rows(whole)], shape, kept, out)].tobytes()


def expected_rows(whole: Elements, kept: KeptTokens) -> list[list[int]]:
    return [
        row.tolist()
        for layer, mask in zip(whole, kept.mask, strict=True)
        for part in layer
        for token, wanted in zip(part, mask, strict=True)
        if wanted
        for row in token
    ]


@given(shapes, st.integers(0, 1 << 32))
def test_every_bit_of_the_kept_tokens_comes_back_and_no_other_row(shape: ChunkShape, seed: int) -> None:
    whole, kept = chunk(shape, seed)
    payload = np.frombuffer(packed(shape, whole, kept), np.uint8)
    found = read_kept(payload, shape)
    assert np.array_equal(found.mask, kept.mask)
    assert np.array_equal(found.before, kept.before)
    expected = expected_rows(whole, kept)
    sink = np.zeros((len(expected), shape.head_dim), element_dtype(shape.dtype))
    cut = len(expected) // 2
    unpack(payload, shape, found, [sink[:cut], sink[cut:]])
    assert sink.tolist() == expected


def test_the_bytes_are_those_of_the_format() -> None:
    """Two layers of ten tokens with rows of one byte, byte by byte."""
    shape = ChunkShape(layers=2, parts=1, tokens=10, heads=1, head_dim=1, dtype=KvDtype.UINT8)
    mask = np.zeros((2, 10), np.bool_)
    mask[0, [0, 9]] = mask[1, 3] = True
    values = np.arange(20, dtype=np.uint8).reshape(20, 1)
    out = np.full(40, 0xA5, np.uint8)
    length = pack([values], shape, KeptTokens(mask, np.array([7, 258])), out)
    counts, bitmaps, padding, kept = "07000000 02010000", "0102 0800", "00000000", "00 09 0d"
    assert out[:length].tobytes() == bytes.fromhex(counts + bitmaps + padding + kept)
    assert (out[length:] == 0xA5).all()


@given(st.integers(0, 1 << 32), st.lists(st.integers(1, 4), max_size=6))
def test_a_paged_cache_gives_the_bytes_of_a_contiguous_one(seed: int, blocks: list[int]) -> None:
    whole, kept = chunk(SMALL, seed)
    flat, cuts = rows(whole), np.cumsum([tokens * SMALL.heads for tokens in blocks])
    out = np.zeros(2 * SMALL.raw_bytes, np.uint8)
    length = pack(np.split(flat, cuts), SMALL, kept, out)
    assert out[:length].tobytes() == packed(SMALL, whole, kept)


def test_a_block_that_ends_within_a_token_is_refused() -> None:
    whole, kept = chunk(SMALL, 1)
    with pytest.raises(LayoutError, match="within a token"):
        pack(np.split(rows(whole), [4]), SMALL, kept, np.zeros(2 * SMALL.raw_bytes, np.uint8))


@given(shapes, st.integers(64, 4096))
def test_a_chunk_of_the_largest_size_fits_its_slot_with_all_tokens_kept(shape: ChunkShape, chunk_bytes: int) -> None:
    token_bytes = shape.raw_bytes // shape.layers // shape.tokens
    room = largest_raw_bytes(chunk_bytes, token_bytes)
    for layers, tokens in ((1, room // token_bytes), (room // token_bytes, 1)):
        if layers * tokens:
            full = ChunkShape(layers, shape.parts, tokens, shape.heads, shape.head_dim, shape.dtype)
            whole, _ = chunk(full, 0)
            kept = KeptTokens(np.ones((layers, tokens), np.bool_), np.zeros(layers, np.int64))
            assert pack([rows(whole)], full, kept, np.zeros(chunk_bytes, np.uint8)) <= chunk_bytes


@given(st.binary(max_size=400), st.integers(0, 1 << 32))
def test_no_bytes_make_it_write_outside_of_the_rows_it_announces(payload: bytes, seed: int) -> None:
    """Whatever arrives either is refused or has rows for exactly the tokens that it says it keeps."""
    whole, kept = chunk(SMALL, seed)
    good = bytearray(packed(SMALL, whole, kept))
    good[: len(payload)] = payload
    for candidate in (payload, bytes(good)):
        data = np.frombuffer(candidate, np.uint8)
        try:
            found = read_kept(data, SMALL)
        except CorruptPayload:
            continue
        sink = np.zeros((int(found.counts.sum()) * 6, 4), np.uint16)
        unpack(data, SMALL, found, [sink])
        assert pack_again(sink, found) == candidate


def pack_again(sink: Elements, found: KeptTokens) -> bytes:
    """The payload for these kept rows, with zeros for the others."""
    whole = np.zeros((2, 2, 10, 3, 4), np.uint16)
    parts = np.repeat(found.mask, 2, axis=0).reshape(2, 2, 10)
    whole[parts] = sink.reshape(-1, 3, 4)
    return packed(SMALL, whole, found)


@pytest.mark.parametrize("cut", [0, 5, 15, -1])
def test_a_payload_cut_short_is_refused(cut: int) -> None:
    whole, kept = chunk(SMALL, 2)
    with pytest.raises(CorruptPayload):
        read_kept(np.frombuffer(packed(SMALL, whole, kept)[:cut], np.uint8), SMALL)


def test_sinks_of_another_size_are_refused() -> None:
    whole, kept = chunk(SMALL, 6)
    assert kept.mask.any()
    payload = np.frombuffer(packed(SMALL, whole, kept), np.uint8)
    with pytest.raises(KvferryError):
        unpack(payload, SMALL, kept, [np.zeros((int(kept.counts.sum()) * 6 + 1, 4), np.uint16)])
