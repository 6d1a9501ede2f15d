"""Pictures of figures: made of the lines that benches write, well-formed, with every point in them."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kvferry_runtime.__main__ import main
from kvferry_runtime.bench import bars, chart, plots
from kvferry_runtime.bench.bars import Bar, Group
from kvferry_runtime.bench.chart import Point, Series, Style
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.bench.scale import Axis, Scale

SVG = "{http://www.w3.org/2000/svg}"

FIGURES = {
    "transfer": [
        Figure("transfer.64KiB", 0.05, "GB/s", 4.0, 0.01, 9),
        Figure("transfer.1MiB", 0.5, "GB/s", 4.0, 0.1, 9),
        Figure("transfer.limit.raw_tcp", 4.0, "GB/s", None, None, 1),
        Figure("transfer.int8_gain", 0.7, "GB/s", 0.5, 1.4, 9),
        Figure("transfer.int8_cpu_s_per_gb", 0.8, "s/GB", 1.0, 0.8, 9),
    ],
    "codecs": [
        Figure("codec.none.encode", 11.4, "GB/s", 12.0, 0.95, 9),
        Figure("codec.none.decode", 11.5, "GB/s", 12.0, 0.96, 9),
        Figure("codec.fp8-head.encode", 7.4, "GB/s", 12.0, 0.62, 9),
        Figure("codec.fp8-head.decode", 8.3, "GB/s", 12.0, 0.69, 9),
        Figure("codec.fp8-head.size", 0.5, "wire/raw", None, None, 9),
        Figure("codec.fp8-head.encode_shuffled", 5.5, "GB/s", 12.0, 0.46, 9),
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
        Figure("crossover.2.5gbit.none.size", 1.0, "wire/raw", None, None, 3),
        Figure("crossover.2.5gbit.int8", 420.0, "MB/s", None, None, 3),
        Figure("crossover.2.5gbit.int8.size", 0.5156, "wire/raw", None, None, 3),
        Figure("auto.100mbit", 18.0, "MB/s", 12.0, 1.5, 3),
        Figure("auto.100mbit.size", 0.7, "wire/raw", None, None, 3),
        Figure("auto.2.5gbit", 420.0, "MB/s", 420.0, 1.0, 3),
        Figure("auto.2.5gbit.size", 0.5157, "wire/raw", None, None, 3),
        Figure("auto.step_down", 12.0, "MB/s", 12.0, 1.0, 4),
    ],
}
TIPS = {
    "transfer": ["none: 64 KiB, 0.05", "none: 1 MiB, 0.5", "int8: 1 MiB, 0.7"],
    "codecs": ["none, encode: 0.95", "none, decode: 0.96", "fp8-head, encode: 0.62", "fp8-head, decode: 0.69"],
    "link": ["large: 100, 0.99", "large: 1000, 0.94", "128 tokens: 100, 0.92"],
    "overlap": ["layer by layer: 0.25, 0.25", "layer by layer: 1, 0.94"],
    "crossover": ["none: 100, 1", "none: 2500, 1", "int8: 2500, 1.5", "auto: 100, 1.5", "auto: 2500, 1.5"],
}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """The folder of pictures of all `FIGURES`."""
    for name, figures in FIGURES.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(figure.line() + "\n" for figure in figures))
    assert main(["bench", "plots", str(tmp_path), "--output", str(tmp_path / "out")]) == 0
    return tmp_path / "out"


def _tips(picture: Path) -> list[str]:
    """What a browser shows at each point or bar."""
    return [
        title.text or "" for element in ET.parse(picture).getroot() for title in element if title.tag == f"{SVG}title"
    ]


def _texts(document: ET.Element) -> list[str]:
    return [text.text or "" for text in document.iter(f"{SVG}text")]


def test_each_bench_has_a_picture_with_its_points(pictures: Path) -> None:
    assert {path.stem: _tips(path) for path in pictures.iterdir()} == TIPS


def test_what_auto_chose_is_read_from_the_bytes_that_it_sent(pictures: Path) -> None:
    texts = _texts(ET.parse(pictures / "crossover.svg").getroot())
    assert texts[texts.index("auto:") :][1:3] == ["a mixture", "int8"]


def test_a_picture_says_in_words_what_it_shows(pictures: Path) -> None:
    for path in pictures.iterdir():
        root = ET.parse(path).getroot()
        described = {element.attrib["id"]: element.text or "" for element in root if "id" in element.attrib}
        assert root.attrib["aria-labelledby"].split() == list(described) and all(described.values())
    words = ET.parse(pictures / "link.svg").getroot().findtext(f"{SVG}desc") or ""
    assert "128 tokens, target 0.6: 100: 0.92" in words


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


@pytest.mark.parametrize("axis", [Axis("a"), Axis("a", True), Axis("a", low=0.0), Axis("a", named={1.0: "one"})])
@pytest.mark.parametrize("points", [((1.0, 5.0),), ((1.0, 5.0), (10.0, 5.0)), ((1.0, 1e-3), (1e6, 1e6))])
@pytest.mark.parametrize("notes", [False, True])
def test_any_points_stay_within_the_picture(axis: Axis, points: tuple[Point, ...], notes: bool) -> None:
    series = [
        Series("one", points, target=((1.0, 7.0),), notes=("note",) * len(points) if notes else ()),
        Series("two", points, Style.RINGS),
        Series("three", points, Style.BOUND),
    ]
    _within(ET.fromstring(chart.lines("t", "s", axis, axis, series)))


@pytest.mark.parametrize("lengths", [(0.0, 0.0), (0.5, 1.2), (1e-3, 40.0)])
def test_any_bars_stay_within_the_picture(lengths: tuple[float, float]) -> None:
    groups = [Group(f"group {index}", "note", (Bar(lengths[0], 0.8), Bar(lengths[1]))) for index in range(9)]
    _within(ET.fromstring(bars.bars("t", "s", Axis("x", low=0.0), ("encode", "decode"), groups)))


@pytest.mark.parametrize("axis", [Axis("a"), Axis("a", True), Axis("a", low=0.0)])
def test_numbers_stand_where_their_values_are_drawn(axis: Axis) -> None:
    scale = Scale(axis, [1.0, 1000.0], 0.0, 100.0)
    places = [scale.at(value) for value, _ in scale.ticks()]
    assert len(places) >= 3
    assert all(0 <= place <= 100 for place in places) and places == sorted(places)
    assert all(float(text) == pytest.approx(value) for value, text in scale.ticks())


def test_names_of_lines_that_end_together_do_not_touch() -> None:
    """Nor do they leave the picture where they end at its bottom."""
    names = ("none", "int8", "fp8", "lossless")
    series = [Series(name, ((1.0, 3.0), (2.0, 1.0)), target=((1.0, 2.0),)) for name in names]
    root = ET.fromstring(chart.lines("t", "s", Axis("x"), Axis("y"), series))
    heights = sorted(float(text.attrib["y"]) for text in root.iter(f"{SVG}text") if text.text in (*names, "target 2"))
    assert len(heights) == 2 * len(names) and heights[-1] < float(root.attrib["height"]) - 20
    assert all(after - before >= 12 for before, after in itertools.pairwise(heights))


def _within(root: ET.Element) -> None:
    """Points, bars, lines and the places of texts."""
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    places = [(element.get("x") or element.get("cx"), element.get("y") or element.get("cy")) for element in root]
    ends = [
        (float(element.attrib["x"]) + float(element.attrib["width"]), element.attrib["y"])
        for element in root.iter(f"{SVG}rect")
    ]
    lines = [point.split(",") for line in root.iter(f"{SVG}polyline") for point in line.attrib["points"].split()]
    for x, y in [*(place for place in places if place[0] is not None), *ends, *lines]:
        assert 0 <= float(x or "nan") <= width and 0 <= float(y or "nan") <= height
