"""The script that measures on a GPU is sound: its dry run passes every check that needs no second process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parent / "run"
CHECKS = ("bytes", "speed", "gather", "overlap", "case33", "engine")
TIMEOUT_S = 300


@pytest.mark.timeout(TIMEOUT_S)
def test_a_dry_run_gives_every_figure(tmp_path: Path) -> None:
    """Case 33: also that each layer was seen as it was computed, on the stand-in's streams."""
    file = tmp_path / "gpu.jsonl"
    command = [str(RUN), "--dry", "--json", str(file), "--only", *CHECKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure for figure in map(json.loads, file.read_text().splitlines())}
    exact = [name for name in figures if name.startswith(("gpu.bytes.", "gpu.case33.", "gpu.engine.equal"))]
    assert len(exact) >= 10
    assert {figures[name]["ratio"] for name in exact} == {1.0}
    assert {name.split(".")[1] for name in figures} >= {
        "codec",
        "ring",
        "gather",
        "encode_to_slot",
        "overlap",
        "engine",
    }


def test_a_machine_without_torch_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text(
        '#!/bin/sh\ncat >/dev/null\n[ "$1" = --version ] && echo Python 3.11 || echo torch triton\n'
    )
    (tmp_path / "python3").chmod(0o755)
    copy = tmp_path / "tree" / "tests" / "gpu"
    copy.mkdir(parents=True)
    (copy / "run").write_text(RUN.read_text())
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(copy / "run")], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "lacks: torch triton" in done.stderr
