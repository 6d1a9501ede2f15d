"""Where the contexts come from."""

from pathlib import Path

import pytest

from kvferry_runtime.errors import SettingsError
from kvferry_runtime.quality.text import load, windows


def test_windows_are_pieces_of_the_text_that_do_not_overlap_and_depend_on_the_seed() -> None:
    tokens = list(range(1000))
    found = windows(tokens, 7, 90, seed=3)
    assert found == windows(tokens, 7, 90, seed=3) != windows(tokens, 7, 90, seed=4)
    flat = [token for window in found for token in window]
    assert len(set(flat)) == 7 * 90
    assert flat == sorted(flat)


def test_a_text_too_short_says_how_many_windows_it_holds() -> None:
    with pytest.raises(SettingsError, match="hold 3 windows of 30, 4 were asked for"):
        windows(list(range(100)), 4, 30, seed=0)


def test_every_python_has_a_text_and_it_is_long_enough_for_the_defaults() -> None:
    text = load(None)
    assert len(text.content) > 300_000
    assert "pydoc_data" in text.origin


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="binary"):
        load(tmp_path / "binary")
    with pytest.raises(SettingsError, match="missing"):
        load(tmp_path / "missing")
