"""How long the next forward pass is expected to take."""

from __future__ import annotations

import pytest

from kvferry_runtime.auto.compute import KEPT, MAX_RANGES, MIN_TOKENS, UNKNOWN, PassTime, Prefills

FIRST, LAST = range(4), range(4, 8)


def test_nothing_is_expected_before_the_first_pass() -> None:
    assert Prefills().expected(FIRST, 100) == UNKNOWN


def test_each_range_of_layers_has_its_own_times() -> None:
    passes = Prefills()
    passes.observed(FIRST, 100, PassTime(2.0, 1.0))
    passes.observed(LAST, 100, PassTime(1.0, 0.0))
    assert passes.expected(FIRST, 200) == PassTime(4.0, 2.0)
    assert passes.expected(LAST, 50) == PassTime(0.5, 0.0)


def test_one_pass_that_waited_changes_nothing() -> None:
    passes = Prefills()
    for seconds in (1.0, 1.0, 60.0, 1.0, 1.0):
        passes.observed(FIRST, 100, PassTime(seconds, 0.0))
    assert passes.expected(FIRST, 100) == PassTime(1.0, 0.0)
    for _ in range(KEPT):
        passes.observed(FIRST, 100, PassTime(3.0, 0.0))
    assert passes.expected(FIRST, 100).compute == pytest.approx(3.0), "but a machine that has become slower is believed"


@pytest.mark.parametrize(("tokens", "took"), [(MIN_TOKENS - 1, PassTime(1.0, 0.5)), (100, UNKNOWN)])
def test_what_says_nothing_is_not_kept(tokens: int, took: PassTime) -> None:
    passes = Prefills()
    passes.observed(FIRST, tokens, took)
    assert passes.expected(FIRST, 100) == UNKNOWN


def test_no_more_ranges_are_kept_than_there_can_be_stages() -> None:
    passes = Prefills()
    for number in range(MAX_RANGES + 1):
        passes.observed(range(number, number + 1), 100, PassTime(1.0, 0.0))
        passes.observed(LAST, 100, PassTime(1.0, 0.0))
    assert passes.expected(range(1), 100) == UNKNOWN
    assert passes.expected(LAST, 100) == passes.expected(range(MAX_RANGES, MAX_RANGES + 1), 100) == PassTime(1.0, 0.0)
