from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_operator.api import quantity


@pytest.mark.parametrize(
    ("raw", "value"),
    [("256Mi", 268435456), ("1k", 1000), ("1Ki", 1024), ("1.5Gi", 1610612736), (7, 7), ("0", 0), ("2000m", 2)],
)
def test_bytes(raw: object, value: int) -> None:
    assert quantity.to_bytes(raw) == value


def test_fractions_of_a_unit_are_exact() -> None:
    assert quantity.parse("100m") == Decimal("0.1")


@pytest.mark.parametrize(
    "raw", ["", "Mi", "1 Mi", "-1", "1MiB", "1e3x", "٣", "1" * 40, 10**40, 1.5, True, None, [], "1\n"]
)
def test_what_is_no_quantity_is_refused(raw: object) -> None:
    with pytest.raises(quantity.QuantityError):
        quantity.parse(raw)


def test_a_fraction_of_a_byte_is_refused() -> None:
    with pytest.raises(quantity.QuantityError, match="whole number of bytes"):
        quantity.to_bytes("100m")


@given(st.integers(min_value=0, max_value=2**62))
def test_written_bytes_read_back(count: int) -> None:
    assert quantity.to_bytes(quantity.from_bytes(count)) == count
