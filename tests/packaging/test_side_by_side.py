"""What `make test` says of its two halves."""

from __future__ import annotations

import pytest

from side_by_side import worst


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([0, 0], 0),
        ([0, 1], 1),
        ([2, 0], 2),
        ([-6, 0], 134),
        ([0, -9], 137),
        ([1, -6], 134),
        ([5, 0], 0),
        ([5, 1], 1),
        ([5, 5], 5),
    ],
)
def test_no_half_that_failed_or_died_is_a_success(statuses: list[int], expected: int) -> None:
    assert worst(statuses) == expected
