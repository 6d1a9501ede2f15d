"""A flood of causes does not become a flood of lines."""

from __future__ import annotations

from kvferry_runtime.transport.log_limit import LogLimit


def test_lines_beyond_the_limit_are_counted_and_told_later() -> None:
    now = 0.0
    limit = LogLimit(lambda: now, lines=2, seconds=10.0)
    assert [limit.held_back() for _ in range(5)] == [0, 0, None, None, None]
    now = 10.0
    assert [limit.held_back() for _ in range(3)] == [3, 0, None]
