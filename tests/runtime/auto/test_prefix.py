"""Where a transfer is ended early so that decode computes the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.auto.prefix import GAIN, Ending, best_ending

ENDINGS = [Ending(512, 10_000_000), Ending(1024, 20_000_000), Ending(1536, 30_000_000)]
REST = {"tokens": 2048, "raw_bytes": 40_000_000}


@pytest.mark.parametrize(
    ("bytes_per_second", "tokens_per_second", "cut"),
    [
        pytest.param(1e9, 1e3, None, id="the link is faster than the engine"),
        pytest.param(1e6, 1e3, ENDINGS[0], id="the link has collapsed"),
        pytest.param(1e7, 2e3, ENDINGS[0], id="computing is twice as fast as sending"),
        pytest.param(1e7, 500, None, id="sending is as fast as computing"),
    ],
)
def test_where_it_ends(bytes_per_second: float, tokens_per_second: float, cut: Ending | None) -> None:
    assert (
        best_ending(ENDINGS, **REST, raw_bytes_per_second=bytes_per_second, tokens_per_second=tokens_per_second) == cut
    )


def test_what_was_sent_already_is_used() -> None:
    """A later cut that costs nothing more to send is better than an earlier one."""
    endings = [Ending(512, 0), Ending(1024, 0), Ending(1536, 10_000_000)]
    assert best_ending(endings, 2048, 20_000_000, 1e6, 1e3) == endings[1]


def test_without_a_place_to_end_everything_is_sent() -> None:
    assert best_ending([], 2048, 10**12, 1.0, 1e6) is None


@given(
    sizes=st.lists(st.integers(0, 10**9), min_size=2, max_size=8),
    rate=st.floats(1e3, 1e10),
    tokens_per_second=st.floats(1, 1e6),
)
def test_it_is_ended_only_for_a_clear_gain(sizes: list[int], rate: float, tokens_per_second: float) -> None:
    *before, total = sorted(sizes)
    endings = [Ending(512 * (number + 1), size) for number, size in enumerate(before)]
    tokens = 512 * (len(endings) + 1)
    ending = best_ending(endings, tokens, total, rate, tokens_per_second)
    if ending is not None:
        seconds = ending.raw_bytes / rate + (tokens - ending.tokens) / tokens_per_second
        assert seconds <= (1 - GAIN) * total / rate
