"""Kernels are compiled also where no folder can be written."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from numba import types
from numba.core import config

from kvferry_runtime.codec.host_jit import kernel


def test_compiled_without_a_cache_if_no_folder_can_be_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setattr(config, "CACHE_DIR", str(blocked / "cache"))
    monkeypatch.setattr(config, "CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")

    with caplog.at_level(logging.WARNING):

        @kernel(types.int64(types.int64))
        def twice(number: int) -> int:
            return number * 2

    assert twice(21) == 42
    assert "NUMBA_CACHE_DIR" in caplog.text
