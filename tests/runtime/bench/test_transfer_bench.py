"""The transfer's figures on a size too small to say anything: real processes, right bytes, every name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvferry_runtime.__main__ import main

pytest.importorskip("ucxx")


@pytest.mark.slow
def test_every_figure_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    arguments = ["--sizes", "64KiB,1MiB", "--method", "none,int8", "--budget", "1MiB", "--json", str(file)]
    assert main(["bench", "transfer", *arguments]) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["name"].removeprefix("transfer.") for line in lines] == [
        "limit.memcpy",
        "limit.raw_tcp",
        "limit.plain_sockets",
        "limit.cpu_bound",
        "against_raw_tcp",
        "64KiB",
        "1MiB",
        "engine_to_engine",
        "cpu_s_per_gb",
        "cores_busy",
        "limit.bare_chain",
        "limit.bare_chain_cpu_s_per_gb",
        "limit.cpu_bound_together",
        "against_cpu_bound_together",
        "against_bare_chain",
        "fragmented",
        "int8_gain",
        "int8_cpu_s_per_gb",
    ]
    for line in lines:
        assert set(line) == {"name", "value", "unit", "against", "ratio", "n"}
        assert line["value"] > 0
    assert "transfer.engine_to_engine" in capsys.readouterr().out
