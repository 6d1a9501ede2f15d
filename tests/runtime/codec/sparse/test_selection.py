"""Which tokens of a prompt survive a sparse transfer, and how many."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.codec.sparse.budget import SPARSE, SPARSE50, SPARSE75, Budget
from kvferry_runtime.codec.sparse.selection import select

scores_of = st.lists(st.floats(width=32), min_size=1, max_size=400).map(lambda values: np.array(values, np.float32))


def test_the_budget_is_that_of_the_whole_prompt_however_it_was_computed() -> None:
    """Case 32: 300 tokens in chunks of 128, 128 and 44 keep what one piece of 300 keeps, 64 in all."""
    scores = np.random.default_rng(32).random(300).astype(np.float32)
    in_chunks = np.concatenate([scores[:128], scores[128:256], scores[256:]])
    whole, chunked = select(scores, 64, 4, 16), select(in_chunks, 64, 4, 16)
    assert np.array_equal(whole, chunked)
    assert whole.sum() == 64
    assert whole[:4].all()
    assert whole[-16:].all()


def test_a_short_prompt_is_kept_whole() -> None:
    """Case 32: 10 tokens, fewer than the protected ones."""
    assert select(np.zeros(10, np.float32), 64, 4, 16).tolist() == [True] * 10


@given(scores_of, st.integers(0, 500), st.integers(0, 40), st.integers(0, 40))
def test_exactly_the_budget_is_kept_and_both_ends_always(scores, keep: int, first: int, last: int) -> None:
    mask = select(scores, keep, first, last)
    protected = min(len(scores), first + last)
    assert mask.sum() == max(min(keep, len(scores)), protected)
    assert mask[:first].all()
    assert mask[max(0, len(scores) - last) :].all()
    between = np.arange(len(scores))[first : max(first, len(scores) - last)]
    kept, left = scores[between[mask[between]]], scores[between[~mask[between]]]
    if kept.size and left.size and not np.isnan(scores).any():
        assert kept.min() >= left.max()


def test_ties_go_to_the_earlier_token_and_what_is_no_number_goes_first() -> None:
    scores = np.array([9, 1, np.nan, 1, np.inf, 1, 9], np.float32)
    assert np.flatnonzero(select(scores, 4, 1, 1)).tolist() == [0, 1, 4, 6]
    assert np.flatnonzero(select(scores, 6, 1, 1)).tolist() == [0, 1, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("method", "tokens", "kept"),
    [
        (SPARSE50, 1000, 500), (SPARSE50, 1001, 501), (SPARSE75, 1000, 250), (SPARSE75, 1001, 251),
        (SPARSE50, 100, 80), (SPARSE75, 100, 80), (SPARSE50, 80, 80), (SPARSE75, 10, 10), (SPARSE75, 1, 1),
    ],
)  # fmt: skip
def test_what_is_kept_of_a_prompt(method, tokens: int, kept: int) -> None:
    """The share, but never less than the first 16 and last 64 tokens, which are all of a short prompt."""
    budget = Budget(method, first=16, last=64)
    assert budget.kept(tokens) == kept
    assert budget.evicts(tokens) is (kept < tokens)


@given(st.sampled_from(sorted(SPARSE)), st.integers(1, 100_000), st.integers(0, 500), st.integers(0, 500))
def test_a_longer_prompt_never_keeps_fewer_tokens(name: str, tokens: int, first: int, last: int) -> None:
    budget = Budget(SPARSE[name], first, last)
    assert budget.kept(tokens) <= budget.kept(tokens + 1) <= tokens + 1
