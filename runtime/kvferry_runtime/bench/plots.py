"""Pictures of figures: JSON lines in, SVG out, in the colours and axes of `trace.svg`. Pure but for the files.

Each picture is made of one bench's lines, by their names alone; what was not measured is not drawn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kvferry_runtime.bench import chart
from kvferry_runtime.bench.chart import Series
from kvferry_runtime.bench.rate import parse
from kvferry_runtime.errors import SettingsError

Line = Mapping[str, object]

_RATE = r"(?P<rate>[0-9.]+[kmg]bit)"


def write(source: Path, target: Path) -> list[Path]:
    """Draw what the files of `source` (transfer.jsonl, link.jsonl, …) allow into `target`; the files that were written.

    Raises:
        SettingsError: no figures are there, or a file cannot be read or written.
    """
    written: list[Path] = []
    for name, (file, draw) in PICTURES.items():
        lines = _lines(source / file)
        picture = draw(lines) if lines else None
        if picture is None:
            continue
        try:
            target.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(picture, encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"cannot write {target / name}: {error.strerror}") from error
        written.append(target / name)
    if not written:
        raise SettingsError(f"{source} has no figures that could be drawn: run `make bench` first")
    return written


def crossover(lines: Sequence[Line]) -> str | None:
    """Goodput of each method against the link's rate, and what `auto` got."""
    fixed = _by_rate(lines, rf"crossover\.{_RATE}\.(?P<series>[a-z0-9]+)")
    auto = _by_rate(lines, rf"auto\.{_RATE}(?P<series>)")
    series = [Series(method, tuple(sorted(points.items()))) for method, points in fixed.items()]
    chosen = [Series("auto", tuple(sorted(points.items())), marked=True) for points in auto.values()]
    if not series:
        return None
    return chart.lines(
        "Raw KV moved by each method, and by auto",
        "link, Mbit/s",
        "MB/s of raw KV",
        [*series, *chosen],
        logarithmic=True,
    )


def link(lines: Sequence[Line]) -> str | None:
    """Share of iperf3 that large and short transfers reach at each rate."""
    large = _by_rate(lines, rf"link\.{_RATE}(?P<series>)", "ratio")
    short = _by_rate(lines, rf"link\.{_RATE}\.tokens_(?P<series>\d+)", "ratio")
    named = {"large": large.get("", {})} | {f"{tokens} tokens": points for tokens, points in short.items()}
    series = [Series(name, tuple(sorted(points.items()))) for name, points in named.items() if points]
    if not series:
        return None
    return chart.lines(
        "Goodput on a limited link, as a share of iperf3",
        "link, Mbit/s",
        "share",
        series,
        logarithmic=True,
        target=0.98,
    )


def overlap(lines: Sequence[Line]) -> str | None:
    """Hidden share of the wire time against the length of the forward pass."""
    points = {}
    for line in lines:
        match = re.fullmatch(r"overlap\.hidden_share\.([0-9.]+)", str(line["name"]))
        if match:
            points[float(match[1])] = _number(line["value"])
    if not points:
        return None
    return chart.lines(
        "Wire time hidden behind the forward pass",
        "length of the pass, in transfers",
        "hidden share",
        [Series("layer by layer", tuple(sorted(points.items())))],
        target=0.9,
    )


def transfer(lines: Sequence[Line]) -> str | None:
    """Goodput against the size of a transfer, engine memory to engine memory."""
    points = {}
    for line in lines:
        match = re.fullmatch(r"transfer\.(\d+)(KiB|MiB|GiB)", str(line["name"]))
        if match:
            points[float(match[1]) * {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}[match[2]]] = _number(line["value"])
    if not points:
        return None
    return chart.lines(
        "Engine memory to engine memory, method none",
        "size of a transfer, MiB",
        "GB/s",
        [Series("goodput", tuple(sorted(points.items())))],
        logarithmic=True,
    )


PICTURES: Mapping[str, tuple[str, Callable[[Sequence[Line]], str | None]]] = {
    "transfer.svg": ("transfer.jsonl", transfer),
    "link.svg": ("link.jsonl", link),
    "overlap.svg": ("overlap.jsonl", overlap),
    "crossover.svg": ("crossover.jsonl", crossover),
}
"""Picture, the file of figures that it is made of, and how."""


def _by_rate(lines: Sequence[Line], pattern: str, key: str = "value") -> dict[str, dict[float, float]]:
    """Series to rate in Mbit/s to the figure's value (or ratio), for names that match the whole pattern."""
    found: dict[str, dict[float, float]] = {}
    for line in lines:
        match = re.fullmatch(pattern, str(line["name"]))
        if match:
            found.setdefault(match["series"], {})[parse(match["rate"]).bits / 1e6] = _number(line[key])
    return found


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise SettingsError(f"a figure has {value!r} where a number is needed")
    return float(value)


def _lines(path: Path) -> list[Line]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read the figures of {path}: {error}") from error
