"""`kvferry-runtime timeline`: files in, a picture, one file for Perfetto and a table out."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kvferry_runtime.__main__ import main
from kvferry_runtime.trace import chrome
from kvferry_runtime.trace.events import Event, Phase, Trace


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    engine = Trace("prefill engine", "host", (Event(Phase.COMPUTED, "aa", 0, 1, 0, 16, -1, 0, 4_000_000),), 0)
    sent = tuple(Event(Phase.SENT, transfer, 0, 1, 0, 16, 0, 2_000_000, 6_000_000, 4096) for transfer in ("aa", "bb"))
    paths = []
    for name, trace in (("engine", engine), ("sidecar", Trace("prefill sidecar", "host", sent, 0))):
        path = tmp_path / f"{name}.json"
        path.write_text(chrome.dump([trace]))
        paths.append(str(path))
    return paths


def test_a_picture_and_a_table(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.svg"
    assert main(["timeline", *files, "-o", str(output)]) == 0
    assert ET.parse(output).getroot().tag.endswith("svg")
    assert "2 transfers; 4.00 ms on the wire, hidden: 50.0%" in capsys.readouterr().out


def test_one_transfer(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", *files, "--transfer", "a"]) == 0
    assert "1 transfers" in capsys.readouterr().out


def test_one_file_for_perfetto(files: list[str], tmp_path: Path) -> None:
    output = tmp_path / "all.json"
    assert main(["timeline", *files, "-o", str(output)]) == 0
    assert [trace.process for trace in chrome.load(output.read_text(), "all.json")] == [
        "prefill engine",
        "prefill sidecar",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["absent.json"], "cannot read the trace absent.json"),
        ([__file__], "is not a trace that kvferry-runtime wrote"),
        ([__file__, "-o", "out.png"], "choose a name that ends in .svg"),
    ],
)
def test_wrong_arguments(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_importing_the_command_is_cheap() -> None:
    """It is imported by every command of `kvferry-runtime`."""
    code = "import sys, kvferry_runtime.trace.command; sys.exit('kvferry_runtime.trace.chrome' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
