"""Pictures of figures: made of the lines that benches write, well-formed, with every point in them."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kvferry_runtime.__main__ import main
from kvferry_runtime.bench import chart, plots
from kvferry_runtime.bench.chart import Series
from kvferry_runtime.bench.figures import Figure

SVG = "{http://www.w3.org/2000/svg}"

FIGURES = {
    "transfer": [
        Figure("transfer.64KiB", 0.05, "GB/s", 4.0, 0.01, 9),
        Figure("transfer.1MiB", 0.5, "GB/s", 4.0, 0.1, 9),
    ],
    "link": [
        Figure("link.limit.100mbit", 12.0, "MB/s", 12.5, 0.96, 1),
        Figure("link.100mbit", 11.9, "MB/s", 12.0, 0.99, 3),
        Figure("link.1gbit", 110.0, "MB/s", 117.0, 0.94, 3),
        Figure("link.100mbit.tokens_128", 11.0, "MB/s", 12.0, 0.92, 3),
        Figure("link.100mbit.int8_gain", 23.0, "MB/s", 11.9, 1.93, 3),
    ],
    "overlap": [
        Figure("overlap.hidden_share", 0.94, "share", None, None, 5),
        Figure("overlap.hidden_share.0.25", 0.25, "share", None, None, 5),
        Figure("overlap.hidden_share.1", 0.94, "share", None, None, 5),
    ],
    "crossover": [
        Figure("crossover.100mbit.none", 12.0, "MB/s", None, None, 3),
        Figure("crossover.100mbit.none.size", 1.0, "wire/raw", None, None, 3),
        Figure("crossover.2.5gbit.none", 280.0, "MB/s", None, None, 3),
        Figure("auto.2.5gbit", 280.0, "MB/s", 280.0, 1.0, 3),
        Figure("auto.100mbit.size", 0.5, "wire/raw", None, None, 3),
        Figure("auto.step_down", 12.0, "MB/s", 12.0, 1.0, 4),
    ],
}
POINTS = {"transfer": 2, "link": 3, "overlap": 2, "crossover": 3}


def _tips(picture: Path) -> list[str]:
    root = ET.parse(picture).getroot()
    return [circle[0].text or "" for circle in root.iter(f"{SVG}circle") if len(circle)]


def test_each_bench_has_a_picture_with_its_points(tmp_path: Path) -> None:
    for name, figures in FIGURES.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(figure.line() + "\n" for figure in figures))
    assert main(["bench", "plots", str(tmp_path), "--output", str(tmp_path / "out")]) == 0
    assert {path.stem: len(_tips(path)) for path in (tmp_path / "out").iterdir()} == POINTS
    assert "auto: 2500, 280" in _tips(tmp_path / "out" / "crossover.svg")


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").write_text(json.dumps({"name": "link.limit.1gbit", "value": 1.0, "ratio": 1.0}) + "\n")
    (tmp_path / "overlap.jsonl").write_text("".join(figure.line() + "\n" for figure in FIGURES["overlap"]))
    assert [path.name for path in plots.write(tmp_path, tmp_path / "out")] == ["overlap.svg"]


@pytest.mark.parametrize(
    ("content", "text"), [(None, "no figures that could be drawn"), ("{", "cannot read the figures")]
)
def test_figures_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, text: str
) -> None:
    if content is not None:
        (tmp_path / "link.jsonl").write_text(content)
    assert main(["bench", "plots", str(tmp_path), "--output", str(tmp_path)]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize("points", [((1.0, 5.0),), ((1.0, 5.0), (10.0, 5.0)), ((1.0, 1e-3), (1e6, 1e6))])
def test_any_points_stay_within_the_picture(logarithmic: bool, points: tuple[tuple[float, float], ...]) -> None:
    root = ET.fromstring(chart.lines("t", "x", "y", [Series("one", points)], logarithmic))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for circle in root.iter(f"{SVG}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width and 0 <= float(circle.attrib["cy"]) <= height


def test_names_of_lines_that_end_together_do_not_touch() -> None:
    series = [Series(name, ((1.0, 1.0), (2.0, 3.0))) for name in ("none", "int8", "fp8")]
    root = ET.fromstring(chart.lines("t", "x", "y", series))
    heights = sorted(
        float(text.attrib["y"]) for text in root.iter(f"{SVG}text") if text.text in ("none", "int8", "fp8")
    )
    assert all(after - before >= 12 for before, after in itertools.pairwise(heights))
