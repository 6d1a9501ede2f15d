"""`kvferry-runtime quality` from its arguments to its figures, with a model of random weights."""

import json
from pathlib import Path

import pytest

from kvferry_runtime.__main__ import main
from kvferry_runtime.quality import text

ARGUMENTS = (
    "--windows",
    "2",
    "--context",
    "300",
    "--next",
    "12",
    "--threads",
    "1",
    "--keep-first",
    "4",
    "--keep-last",
    "16",
)


def measured(folder: Path, tmp_path: Path, *arguments: str) -> dict[str, float]:
    lines, prose = tmp_path / "quality.jsonl", tmp_path / "prose.txt"
    prose.write_text(text.load(None).content[:4000])  # a token for each byte
    given = ["--model", str(folder), "--text", str(prose), "--json", str(lines)]
    assert main(["quality", *given, *ARGUMENTS, *arguments]) == 0
    return {item["name"]: item["value"] for item in map(json.loads, lines.read_text().splitlines())}


def test_exact_methods_change_nothing_and_the_others_a_little(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured(folder, tmp_path)
    methods = {name.split(".")[1] for name in found}
    assert {"none", "lossless", "int8", "fp8", "sparse50", "sparse75", "sparse50-keys", "sparse75-keys"} <= methods
    for name in ("none", "lossless"):
        assert (found[f"quality.{name}.kl"], found[f"quality.{name}.top1"], found[f"quality.{name}.greedy"]) == (
            0,
            1,
            1,
        )
    for name in methods - {"none", "lossless"}:
        assert 0 < found[f"quality.{name}.kl"] < 3, name
    assert found["quality.int8.kl"] < found["quality.sparse50.kl"] < found["quality.sparse75.kl"]
    assert found["quality.none.size"] == 1
    assert found["quality.sparse50.size"] == pytest.approx(0.5, abs=0.05)
    assert found["quality.sparse75.size"] == pytest.approx(0.25, abs=0.05)
    output = capsys.readouterr()
    assert "| sparse75-keys |" in output.out
    assert "seed 0" in output.out
    assert "window 2 of 2" in output.err


def test_the_same_seed_gives_the_same_figures(folder: Path, tmp_path: Path) -> None:
    first = measured(folder, tmp_path, "--methods", "fp8,sparse75", "--seed", "5")
    assert first == measured(folder, tmp_path, "--methods", "fp8,sparse75", "--seed", "5")
    assert first != measured(folder, tmp_path, "--methods", "fp8,sparse75", "--seed", "6")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "fp9"], "no method fp9; there are none, int8"),
        (["--windows", "0"], "--windows 0: allowed are 1 to 1000"),
        (["--context", "5000"], "the model takes 4096 tokens in all"),
        (["--text", "nowhere.txt"], "nowhere.txt"),
        (["--json", "nowhere/quality.jsonl"], "cannot write nowhere/quality.jsonl"),
    ],
)
def test_wrong_arguments_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["quality", "--model", str(folder), *ARGUMENTS, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_is_not_there_is_told_so_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quality", "--model", str(tmp_path / "nope"), *ARGUMENTS]) == 2
    assert f"there is no folder {tmp_path / 'nope'}" in capsys.readouterr().err
    assert main(["quality", "--model", str(tmp_path), *ARGUMENTS]) == 2
    assert "it has no config.json, no tokenizer.json, no *.safetensors" in capsys.readouterr().err
