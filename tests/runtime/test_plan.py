"""Plans cover every layer and token exactly once, within the limits that the receiver has room for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape
from kvferry_runtime.plan import Chunk, layer_chunks, request_chunks

MIB = 1 << 20
SMALL = LayerShape(parts=2, heads=3, head_dim=64, dtype=KvDtype.BF16)  # 768 bytes a token
LATENT = LayerShape(parts=1, heads=1, head_dim=576, dtype=KvDtype.BF16)  # 1152
PACKED = LayerShape(parts=1, heads=1, head_dim=132, dtype=KvDtype.UINT8)  # 132


def uniform(layers: int, first: int = 0) -> KvLayout:
    return KvLayout(first + layers, first, (SMALL,) * layers)


@dataclass(frozen=True)
class Case:
    layout: KvLayout
    tokens: int
    chunk_bytes: int
    lossy: bool
    first: int
    last: int
    apart: bool

    def exact(self, layer: int, token: int) -> bool:
        if not self.lossy:
            return False
        opaque = self.layout.shape(layer).dtype is KvDtype.UINT8
        return opaque or token < self.first or token >= self.tokens - self.last


cases = st.builds(
    Case,
    layout=st.builds(
        lambda first, rest, shapes: KvLayout(first + rest + len(shapes), first, tuple(shapes)),
        st.integers(0, 5),
        st.integers(0, 5),
        st.lists(st.sampled_from([SMALL, LATENT, PACKED]), min_size=1, max_size=6),
    ),
    tokens=st.integers(1, 300),
    chunk_bytes=st.integers(1152, 400_000),
    lossy=st.booleans(),
    first=st.integers(0, 80),
    last=st.integers(0, 80),
    apart=st.booleans(),
)


def assert_sound(case: Case, chunks: list[Chunk], covered: range) -> None:
    """Within limits, one shape and one kind of method in each, every layer and token of `covered` once."""
    seen: Counter[tuple[int, int]] = Counter()
    for chunk in chunks:
        layers, tokens = range(chunk.layer, chunk.layer + chunk.layer_count), range(chunk.token_start, chunk.token_stop)
        assert layers
        assert tokens
        assert len({case.layout.shape(layer) for layer in layers}) == 1
        exact = {case.exact(layer, token) for layer in layers for token in tokens}
        assert any(exact) is chunk.exact
        assert len(exact) == 1 or not case.apart
        assert chunk.raw_bytes == sum(case.layout.shape(layer).bytes_per_token for layer in layers) * len(tokens)
        assert chunk.raw_bytes <= case.chunk_bytes
        seen.update((layer, token) for layer in layers for token in tokens)
    assert seen == Counter((layer, token) for layer in case.layout.layers for token in covered)


@given(cases)
def test_request_plans_are_sound(case: Case) -> None:
    limits = (case.layout, case.tokens, case.chunk_bytes, case.lossy, case.first, case.last)
    assert_sound(case, request_chunks(*limits, apart=case.apart), range(case.tokens))


@given(case=cases, cuts=st.lists(st.integers(0, 300), max_size=4))
def test_request_plans_are_sound_in_bands_of_tokens(case: Case, cuts: list[int]) -> None:
    limits = (case.layout, case.tokens, case.chunk_bytes, case.lossy, case.first, case.last)
    chunks: list[Chunk] = []
    for start, stop in pairwise([0, *sorted({min(cut, case.tokens) for cut in cuts} - {0, case.tokens}), case.tokens]):
        chunks += request_chunks(
            *limits, apart=case.apart, token_start=start, token_stop=stop, first_sequence=len(chunks)
        )
        assert_sound(case, chunks, range(stop))
    assert [chunk.sequence for chunk in chunks] == list(range(len(chunks)))


@given(case=cases, cuts=st.lists(st.integers(0, 300), max_size=4))
def test_layer_plans_are_sound_however_the_prompt_was_computed(case: Case, cuts: list[int]) -> None:
    """A prompt may be computed in several passes; each pass is planned by itself."""
    bounds = [0, *sorted(min(cut, case.tokens) for cut in cuts), case.tokens]
    chunks: list[Chunk] = []
    for start, stop in pairwise(bounds):
        for layer in case.layout.layers:
            chunks += layer_chunks(
                case.layout, layer, start, stop, case.tokens, case.chunk_bytes, case.lossy, case.first, case.last,
                first_sequence=len(chunks), apart=case.apart,
            )  # fmt: skip
    assert_sound(case, chunks, range(case.tokens))
    assert all(chunk.layer_count == 1 for chunk in chunks)
    assert [chunk.sequence for chunk in chunks] == list(range(len(chunks)))


@given(tokens=st.integers(1, 5000), chunk_bytes=st.integers(768, 200_000))
def test_what_is_split_is_split_evenly_and_no_further_than_needed(tokens: int, chunk_bytes: int) -> None:
    chunks = layer_chunks(uniform(1), 0, 0, tokens, tokens, chunk_bytes, False, 0, 0, 0)
    sizes = [chunk.token_stop - chunk.token_start for chunk in chunks]
    assert max(sizes) - min(sizes) <= 1
    assert len(chunks) == -(-tokens // (chunk_bytes // SMALL.bytes_per_token))


def test_a_short_prompt_shares_one_chunk_among_layers() -> None:
    """30 layers of 40 tokens are 900 KiB."""
    assert request_chunks(uniform(30), 40, MIB, False, 16, 64) == [Chunk(0, 0, 30, 0, 40, False, 30 * 40 * 768)]


def test_layers_are_spread_evenly_over_chunks() -> None:
    chunks = request_chunks(uniform(30, first=2), 100, MIB, False, 16, 64)
    assert [(chunk.layer, chunk.layer_count) for chunk in chunks] == [(2, 10), (12, 10), (22, 10)]


def test_the_ends_of_a_prompt_stay_exact_under_a_lossy_method() -> None:
    chunks = layer_chunks(uniform(1), 0, 0, 1000, 1000, MIB, True, 16, 64, 7)
    assert [(c.sequence, c.token_start, c.token_stop, c.exact) for c in chunks] == [
        (7, 0, 16, True),
        (8, 16, 936, False),
        (9, 936, 1000, True),
    ]


@pytest.mark.parametrize("tokens", [1, 16, 79, 80])
def test_a_prompt_of_only_exact_tokens_is_not_cut_in_two(tokens: int) -> None:
    chunks = request_chunks(uniform(2), tokens, MIB, True, 16, 64)
    assert [(c.token_start, c.token_stop, c.exact) for c in chunks] == [(0, tokens, True)]


def test_layers_of_different_shapes_never_share_a_chunk() -> None:
    layout = KvLayout(5, 0, (LATENT, LATENT, PACKED, LATENT, LATENT))
    chunks = request_chunks(layout, 100, MIB, True, 0, 0)
    assert [(c.layer, c.layer_count, c.exact) for c in chunks] == [(0, 2, False), (2, 1, True), (3, 2, False)]


def test_nothing_new_needs_no_chunk() -> None:
    assert layer_chunks(uniform(1), 0, 64, 64, 100, MIB, True, 16, 64, 0) == []
    assert request_chunks(uniform(1), 0, MIB, True, 16, 64) == []


def test_a_token_larger_than_a_chunk_is_refused_with_the_way_out() -> None:
    message = (
        r"one token of layer 3 has 768 bytes, a chunk holds 767: set transfer\.overlap\.chunkBytes to at least 768"
    )
    with pytest.raises(LayoutError, match=message):
        layer_chunks(uniform(4), 3, 0, 10, 10, 767, False, 0, 0, 0)
    with pytest.raises(LayoutError, match="chunkBytes"):
        request_chunks(uniform(4), 10, 767, True, 0, 0)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (6, 5), (0, 11)])
def test_tokens_outside_of_the_prompt_are_refused(start: int, stop: int) -> None:
    with pytest.raises(LayoutError, match=f"tokens {start} to {stop} do not lie within a prompt of 10 tokens"):
        layer_chunks(uniform(1), 0, start, stop, 10, MIB, False, 0, 0, 0)
