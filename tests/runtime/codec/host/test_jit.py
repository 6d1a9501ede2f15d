"""Kernels are compiled also where no folder can be written, and anew when anything that they are made of changed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import types
from numba.core import config

from kvferry_runtime.codec.host import jit
from kvferry_runtime.codec.host.jit import kernel

PART = """
from codecs_of_a_test.host.jit import inlined

@inlined
def times(number):
    return number * 2
"""
KERNELS = """
from codecs_of_a_test.host.jit import kernel
from codecs_of_a_test.host.part import times
from codecs_of_a_test.method.format import ADDED
from numba import types

@kernel(types.int64(types.int64))
def answer(number):
    return times(number) + ADDED
"""
FORMAT = "ADDED = 1\n"


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


def test_what_was_kept_is_used_until_a_shared_part_or_the_format_changes(tmp_path: Path) -> None:
    """The kernel's own file, all that numba itself looks at, stays as it is."""
    codecs = tmp_path / "codecs_of_a_test"
    for folder in ("host", "method"):
        (codecs / folder).mkdir(parents=True)
    (codecs / "host" / "jit.py").write_bytes(Path(jit.__file__).read_bytes())
    (codecs / "method" / "host_kernels.py").write_text(KERNELS)
    part, numbers = codecs / "host" / "part.py", codecs / "method" / "format.py"
    part.write_text(PART)
    numbers.write_text(FORMAT)

    assert _answer_and_loads(tmp_path) == "21 compiled"
    assert _answer_and_loads(tmp_path) == "21 from the cache"
    part.write_text(PART.replace("* 2", "* 30"))
    assert _answer_and_loads(tmp_path) == "301 compiled"
    numbers.write_text(FORMAT.replace("1", "400"))
    assert _answer_and_loads(tmp_path) == "700 compiled"


def _answer_and_loads(root: Path) -> str:
    """What the kernel says about 10 in a process of its own, and where its machine code came from."""
    code = (
        "from codecs_of_a_test.method.host_kernels import answer; "
        "print(answer(10), 'from the cache' if answer.stats.cache_hits else 'compiled')"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(root / "kept"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=True, timeout=200
    )
    return done.stdout.strip()
