"""Wrong arguments end with one clear message before anything is started."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvferry_runtime.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--sizes", "1MB"], "size '1MB': write a number and one of"),
        (["--sizes", "1KiB"], "a multiple of 16KiB"),
        (["--sizes", "8GiB"], "up to 4GiB"),
        (["--method", "none,zip"], "method zip: choose of none, int8, fp8"),
        (["--method", "int8"], "method none is what the others are compared with"),
        (["--json", "/absent/file"], "cannot write /absent/file: No such file or directory"),
    ],
)
def test_wrong_arguments(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "transfer", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_importing_the_command_is_cheap() -> None:
    """It is imported by every command of `kvferry-runtime`."""
    code = "import sys, kvferry_runtime.bench.command; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
