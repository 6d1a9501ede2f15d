"""Which layers a stage holds: each layer once, the remainder first, and no split that a model cannot have."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_contract.split import Shared, Split, SplitError, shared_layers


@pytest.mark.parametrize(
    ("split", "total", "sizes"),
    [
        (Split(1), 30, [30]),
        (Split(2), 30, [15, 15]),
        (Split(3), 32, [11, 11, 10]),
        (Split(4), 30, [8, 8, 7, 7]),
        (Split(5), 5, [1, 1, 1, 1, 1]),
        (Split(3, (10, 12, 8)), 30, [10, 12, 8]),
        (Split(2, (1, 29)), 30, [1, 29]),
        (Split(1, (30,)), 30, [30]),
    ],
)
def test_how_many_layers_each_stage_holds(split: Split, total: int, sizes: list[int]) -> None:
    assert [len(layers) for layers in split.ranges(total)] == sizes


@st.composite
def splits(draw: st.DrawFn, total: int) -> Split:
    stages = draw(st.integers(1, min(total, 8)))
    if draw(st.booleans()):
        return Split(stages)
    cuts = (
        sorted(draw(st.sets(st.integers(1, total - 1), min_size=stages - 1, max_size=stages - 1))) if total > 1 else []
    )
    bounds = [0, *cuts, total]
    return Split(len(bounds) - 1, tuple(stop - start for start, stop in pairwise(bounds)))


@given(data=st.data(), total=st.integers(1, 200))
def test_every_layer_is_held_once_and_stages_follow_each_other(data: st.DataObject, total: int) -> None:
    split = data.draw(splits(total))
    ranges = split.ranges(total)
    assert len(ranges) == split.stages
    assert [layer for layers in ranges for layer in layers] == list(range(total))
    assert all(ranges)
    if not split.layers:
        sizes = [len(layers) for layers in ranges]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True), "the last stage computes the logits too"


@pytest.mark.parametrize(
    ("split", "total", "named"),
    [
        (Split(5), 4, ["5 pipeline stages", "4 layers", "1 to 4"]),
        (Split(0), 4, ["0 pipeline stages", "4 layers"]),
        (Split(-1), 4, ["-1 pipeline stages", "4 layers"]),
        (Split(3, (10, 12, 9)), 30, ["[10, 12, 9]", "31 layers", "3 stages", "30 layers"]),
        (Split(3, (10, 12)), 22, ["name 2 stages", "has 3 stages"]),
        (Split(2, (0, 4)), 4, ["[0, 4]", "each stage needs one"]),
        (Split(2, (-1, 5)), 4, ["[-1, 5]", "each stage needs one"]),
    ],
)
def test_a_split_that_a_model_cannot_have_names_both_numbers(split: Split, total: int, named: list[str]) -> None:
    with pytest.raises(SplitError) as refused:
        split.ranges(total)
    assert all(text in str(refused.value) for text in named), str(refused.value)


@pytest.mark.parametrize(
    ("ours", "theirs", "shared"),
    [
        (range(30), [range(30)], [(0, range(30))]),
        (range(15, 30), [range(10), range(10, 20), range(20, 30)], [(1, range(15, 20)), (2, range(20, 30))]),
        (range(10), [range(10), range(10, 20)], [(0, range(10))]),
        (range(10, 20), [range(10), range(20, 30)], []),
        (range(4, 5), [range(4), range(4, 6), range(6, 9)], [(1, range(4, 5))]),
    ],
)
def test_with_which_stages_layers_are_shared(ours: range, theirs: list[range], shared: list[tuple[int, range]]) -> None:
    assert shared_layers(ours, theirs) == tuple(Shared(peer, layers) for peer, layers in shared)


@given(data=st.data(), total=st.integers(1, 64))
def test_two_splits_of_a_model_share_each_layer_once(data: st.DataObject, total: int) -> None:
    """Case 36: from whichever side it is asked."""
    prefill, decode = (data.draw(splits(total)).ranges(total) for _ in range(2))
    sent = {
        (p, shared.peer, layer)
        for p, held in enumerate(prefill)
        for shared in shared_layers(held, decode)
        for layer in shared.layers
    }
    loaded = {
        (shared.peer, d, layer)
        for d, held in enumerate(decode)
        for shared in shared_layers(held, prefill)
        for layer in shared.layers
    }
    assert sent == loaded
    assert sorted(layer for _, _, layer in sent) == list(range(total))
