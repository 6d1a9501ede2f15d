"""Figures and sizes are read by other tools: their form is a promise."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.bench.figures import Figure, format_size, parse_size, table
from kvferry_runtime.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "size"), [("1B", 1), ("64KiB", 65536), ("1 MiB", 1 << 20), (" 256MiB ", 256 << 20), ("2GiB", 2 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "64", "64kb", "-1MiB", "0MiB", "1.5MiB", "MiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(SettingsError, match="write a number and one of"):
        parse_size(text)


@given(st.integers(1, 1 << 40))
def test_every_size_is_read_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_a_line_has_every_key_and_four_digits() -> None:
    line = json.loads(Figure("transfer.1MiB", 1.23456789, "GB/s", 3.0, None, 5).line())
    assert line == {"name": "transfer.1MiB", "value": 1.235, "unit": "GB/s", "against": 3.0, "ratio": None, "n": 5}


def test_a_table_is_aligned() -> None:
    figures = [Figure("a", 1.0, "GB/s", None, None, 1), Figure("longer.name", 20.5, "s/GB", 41.0, 0.5, 12)]
    lines = table(figures).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[2].split() == ["longer.name", "20.500", "s/GB", "41.000", "0.50", "12"]
