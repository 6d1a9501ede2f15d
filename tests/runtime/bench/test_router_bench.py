"""The router's load figure, on a load too small to say anything: it runs, and writes what others read."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from kvferry_runtime.bench import command
from kvferry_runtime.errors import SettingsError


def _run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["bench", "router", *arguments])
    code: int = args.func(args)
    return code


@pytest.mark.slow
def test_figures_are_written_as_json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry_runtime.bench.router.START_SECONDS", 120.0)
    file = tmp_path / "figures.json"
    assert _run("--requests", "40", "--at-a-time", "4", "--json", str(file)) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["name"] for line in lines] == ["router.added_ms", "router.requests_per_s"]
    for line in lines:
        assert set(line) == {"name", "value", "unit", "against", "ratio", "n"}
        assert line["against"] > 0


def test_a_load_of_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="--at-a-time 0"):
        _run("--at-a-time", "0")
