"""Which KV heads go from which rank to which, for unlike tensor parallelism."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.errors import LayoutError
from kvferry_runtime.heads import HeadMove, HeadSplit, head_moves

HEAD_BYTES = 256

ROWS = [
    # heads, ranks of prefill, of decode: (prefill, decode, heads, bytes read, bytes written)
    (8, 1, 1, [(0, 0, "0-7", "0-2047", "0-2047")]),
    (8, 1, 2, [(0, 0, "0-3", "0-1023", "0-1023"), (0, 1, "4-7", "1024-2047", "0-1023")]),
    (8, 2, 1, [(0, 0, "0-3", "0-1023", "0-1023"), (1, 0, "4-7", "0-1023", "1024-2047")]),
    (6, 2, 3, [
        (0, 0, "0-1", "0-511", "0-511"), (0, 1, "2-2", "512-767", "0-255"),
        (1, 1, "3-3", "0-255", "256-511"), (1, 2, "4-5", "256-767", "0-511"),
    ]),
    (2, 4, 2, [(0, 0, "0-0", "0-255", "0-255"), (2, 1, "1-1", "0-255", "0-255")]),
    (2, 2, 4, [
        (0, 0, "0-0", "0-255", "0-255"), (0, 1, "0-0", "0-255", "0-255"),
        (1, 2, "1-1", "0-255", "0-255"), (1, 3, "1-1", "0-255", "0-255"),
    ]),
    (2, 4, 4, [
        (0, 0, "0-0", "0-255", "0-255"), (1, 1, "0-0", "0-255", "0-255"),
        (2, 2, "1-1", "0-255", "0-255"), (3, 3, "1-1", "0-255", "0-255"),
    ]),
    (2, 4, 1, [(0, 0, "0-0", "0-255", "0-255"), (2, 0, "1-1", "0-255", "256-511")]),
    (1, 2, 3, [(0, 0, "0-0", "0-255", "0-255"), (0, 1, "0-0", "0-255", "0-255"), (1, 2, "0-0", "0-255", "0-255")]),
]  # fmt: skip


def spoken(numbers: range) -> str:
    return f"{numbers.start}-{numbers.stop - 1}"


@pytest.mark.parametrize(("heads", "prefill", "decode", "rows"), ROWS)
def test_table(heads: int, prefill: int, decode: int, rows: list[tuple[int, int, str, str, str]]) -> None:
    assert [
        (
            move.prefill_rank,
            move.decode_rank,
            spoken(move.heads),
            spoken(move.source(HEAD_BYTES)),
            spoken(move.target(HEAD_BYTES)),
        )
        for move in head_moves(heads, prefill, decode)
    ] == rows


@st.composite
def ranks(draw: st.DrawFn, heads: int) -> int:
    divisors = [number for number in range(1, heads + 1) if heads % number == 0]
    return draw(st.sampled_from([*divisors, *(heads * factor for factor in range(2, 6))]))


def row(split: HeadSplit, rank: int, head_bytes: int) -> bytes:
    """What a row of this rank holds: each head's number in each of its bytes."""
    return b"".join(bytes([head]) * head_bytes for head in split.held(rank))


@given(data=st.data(), heads=st.integers(1, 24), head_bytes=st.integers(1, 4))
def test_every_head_of_every_rank_of_decode_is_written_once(data: st.DataObject, heads: int, head_bytes: int) -> None:
    prefill, decode = (HeadSplit(heads, data.draw(ranks(heads))) for _ in range(2))
    rows = [bytearray(len(row(decode, rank, head_bytes))) for rank in range(decode.ranks)]
    written: Counter[tuple[int, int]] = Counter()
    for move in head_moves(heads, prefill.ranks, decode.ranks):
        source, target = move.source(head_bytes), move.target(head_bytes)
        content = row(prefill, move.prefill_rank, head_bytes)[source.start : source.stop]
        assert len(content) == len(target) == len(move.heads) * head_bytes
        rows[move.decode_rank][target.start : target.stop] = content
        written.update((move.decode_rank, place) for place in target)
    assert set(written.values()) == {1}
    assert [bytes(found) for found in rows] == [row(decode, rank, head_bytes) for rank in range(decode.ranks)]


@given(data=st.data(), heads=st.integers(1, 24))
def test_replicas_share_the_load_and_neighbours_go_together(data: st.DataObject, heads: int) -> None:
    prefill, decode = (HeadSplit(heads, data.draw(ranks(heads))) for _ in range(2))
    moves = head_moves(heads, prefill.ranks, decode.ranks)
    assert moves == head_moves(heads, prefill.ranks, decode.ranks)
    assert len({(move.prefill_rank, move.decode_rank) for move in moves}) == len(moves)
    copies = Counter((move.prefill_rank, head) for move in moves for head in move.heads)
    for (rank, head), count in copies.items():
        assert head in prefill.held(rank)
        assert count <= -(-decode.replicas // prefill.replicas)


@given(data=st.data(), heads=st.integers(1, 24))
def test_where_heads_lie(data: st.DataObject, heads: int) -> None:
    split = HeadSplit(heads, data.draw(ranks(heads)))
    held = Counter(head for rank in range(split.ranks) for head in split.held(rank))
    assert held == dict.fromkeys(range(heads), split.replicas)
    for head in range(heads):
        holders = [split.holder(head, replica) for replica in range(split.replicas)]
        assert holders == [rank for rank in range(split.ranks) if head in split.held(rank)]


@pytest.mark.parametrize(
    ("heads", "prefill", "decode", "named"),
    [
        (8, 3, 2, ["8 KV heads", "3 ranks", "divide", "2 of decode"]),
        (8, 2, 12, ["8 KV heads", "12 ranks", "2 ranks of prefill"]),
        (6, 4, 6, ["6 KV heads", "4 ranks"]),
        (0, 1, 1, ["0 KV heads", "1 to 1024 heads"]),
        (8, 0, 1, ["0 ranks", "1 to 1024 ranks"]),
        (8, 1, 2048, ["2048 ranks", "1 to 1024 ranks"]),
    ],
)
def test_what_cannot_be_is_refused_with_all_numbers(heads: int, prefill: int, decode: int, named: list[str]) -> None:
    with pytest.raises(LayoutError) as refused:
        head_moves(heads, prefill, decode)
    assert all(text in str(refused.value) for text in named), str(refused.value)


def test_a_latent_cache_is_one_head_that_every_rank_has() -> None:
    assert head_moves(1, 2, 2) == [HeadMove(0, 0, range(1), 0, 0), HeadMove(1, 1, range(1), 0, 0)]
