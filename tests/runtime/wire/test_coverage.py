"""Coverage against the obvious model: a set of (layer, token)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.wire.coverage import Coverage

RECTANGLES = st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(0, 11), st.integers(1, 6))


@given(st.lists(RECTANGLES, max_size=30))
def test_equals_a_set_of_places(rectangles: list[tuple[int, int, int, int]]) -> None:
    coverage, model = Coverage(range(1, 4), 2, 10), set[tuple[int, int]]()
    for layer, count, start, length in rectangles:
        places = {(a, b) for a in range(layer, layer + count) for b in range(start, start + length)}
        inside = all(1 <= a < 4 and 2 <= b < 10 for a, b in places)
        assert coverage.contains(layer, count, start, start + length) == inside
        if inside:
            assert coverage.add(layer, count, start, start + length) == (not places & model)
            model |= places if not places & model else set()
    missing = [(a, b) for a in range(1, 4) for b in range(2, 10) if (a, b) not in model]
    assert coverage.complete == (not missing)
    gap = coverage.gap()
    if not missing:
        assert gap is None
    else:
        assert gap is not None and gap[:2] == missing[0]
        layer, start, stop = gap
        assert all((layer, token) not in model for token in range(start, stop))
        assert stop == 10 or (layer, stop) in model


def test_empty_rectangles_are_not_inside() -> None:
    coverage = Coverage(range(2), 0, 4)
    assert not coverage.contains(0, 0, 0, 4)
    assert not coverage.contains(0, 1, 2, 2)
