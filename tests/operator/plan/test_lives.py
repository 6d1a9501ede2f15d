"""What stands on a StatefulSet of its groups: read back as written, and whatever else stands there harms nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_operator.api.types import MAX_REPLICAS
from kvferry_operator.plan import lives
from kvferry_operator.plan.lives import MAX_WHY, Life, Phase

TIMES = st.datetimes(datetime(2026, 1, 1), datetime(2036, 1, 1), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=0)
)
LIVES = st.builds(
    Life,
    since=TIMES,
    count=st.integers(0, 1000),
    at=st.none() | TIMES,
    phase=st.sampled_from(Phase),
    why=st.text(st.characters(codec="ascii", categories=["L", "N", "Zs"]), max_size=MAX_WHY),
)
SINCE = "2026-01-01T00:00:00Z"


@given(st.dictionaries(st.integers(0, MAX_REPLICAS - 1), LIVES, max_size=4))
def test_what_is_written_is_read(known: dict[int, Life]) -> None:
    assert lives.read(lives.written(known)) == known


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        "[" * 100_000,
        '{"x": {"since": "2026-01-01T00:00:00Z"}}',
        '{"-1": {"since": "2026-01-01T00:00:00Z"}}',
        '{"0": 3}',
        '{"0": {}}',
        '{"0": {"since": "yesterday"}}',
        '{"0": {"since": "9999-12-31T23:59:59Z"}}',
        '{"0": {"since": "2026-01-01T00:00:00Z", "count": -1}}',
        '{"0": {"since": "2026-01-01T00:00:00Z", "count": "1"}}',
        '{"0": {"since": "2026-01-01T00:00:00Z", "phase": "other"}}',
        '{"0": {"since": "2026-01-01T00:00:00Z", "why": 1}}',
    ],
)
def test_what_somebody_else_wrote_counts_as_nothing(text: str) -> None:
    assert lives.read(text) == {}


def test_a_steady_group_takes_few_bytes() -> None:
    assert json.loads(lives.written({0: Life(datetime(2026, 1, 1, tzinfo=UTC))})) == {"0": {"since": SINCE}}


def test_all_groups_of_the_largest_role_fit_into_an_annotation_whatever_befalls_them() -> None:
    """Annotations of an object have 256 KiB together."""
    since = datetime(2026, 1, 1, tzinfo=UTC)
    worst = Life(since, 1000, since + timedelta(days=1), Phase.WHOLE, "x" * 2 * MAX_WHY)
    for phase in Phase:
        known = {ordinal: Life(worst.since, worst.count, worst.at, phase, worst.why) for ordinal in range(MAX_REPLICAS)}
        assert len(lives.written(known)) < 230 * 1024
