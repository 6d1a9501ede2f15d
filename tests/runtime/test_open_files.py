"""A process takes as many open files as it may have."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from kvferry_runtime.open_files import MANY, wanted

SECONDS = 300


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, MANY),
        (1024, resource.RLIM_INFINITY, MANY),
        (4096, 4096, 4096),
        (MANY + 1, 1 << 20, MANY + 1),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_is_allowed_and_useful(soft: int, hard: int, expected: int) -> None:
    assert wanted(soft, hard) == expected


def test_commands_raise_it() -> None:
    code = (
        "import resource, sys; from kvferry_runtime.__main__ import main\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512)); sys.exit(main(['probe']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert json.loads(done.stdout)["open_files"] == 512, done.stderr
