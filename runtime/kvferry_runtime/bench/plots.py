"""Pictures of figures: JSON lines in, SVG out. Pure but for the files.

Each picture is made of one bench's lines, by their names alone; what was not measured is not drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kvferry_runtime.bench import bars, chart
from kvferry_runtime.bench.bars import Bar, Group
from kvferry_runtime.bench.chart import Point, Series, Style
from kvferry_runtime.bench.figures import parse_size
from kvferry_runtime.bench.lines import Line, by_name, by_rate
from kvferry_runtime.bench.scale import Axis
from kvferry_runtime.errors import SettingsError

LINK_TARGETS = {"large": 0.98, "1024": 0.9, "128": 0.6}
"""Shares of iperf3, by tokens of the prompt."""
HIDDEN_TARGET = 0.9
"""Where the pass is at least as long as the transfer."""
CODEC_TARGETS = {"int8": (0.8, 0.8), "lossless": (0.75, 0.75), "fp8": (0.4, 0.5), "fp4": (0.25, 0.5)}
"""Shares of memcpy, encode and decode."""
_SAME_SIZE = 0.01
"""Sizes that differ by less than this share come from one method."""


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
    """Goodput of each method and of `auto` at each rate, in times that of none; what `auto` chose, by its bytes."""
    goodput = by_rate(lines, r"crossover\.{rate}\.(?P<series>[a-z0-9]+)")
    sizes = by_rate(lines, r"crossover\.{rate}\.(?P<series>[a-z0-9]+)\.size")
    plain = goodput.get("none", {})
    if not plain:
        return None
    series = [Series(method, _times(points, plain)) for method, points in goodput.items()]
    for points in by_rate(lines, r"auto\.{rate}(?P<series>)").values():
        chosen = by_rate(lines, r"auto\.{rate}(?P<series>)\.size").get("", {})
        notes = tuple(_choice(chosen.get(rate), rate, sizes) for rate, _ in _times(points, plain))
        series.append(Series("auto", _times(points, plain), Style.RINGS, notes=notes))
    return chart.lines(
        "Methods against the rate of the link",
        "Goodput of raw KV, in times that of none; at the bottom what auto sent, by its bytes",
        _rates(plain),
        Axis("times the goodput of none", low=0.0),
        series,
    )


def link(lines: Sequence[Line]) -> str | None:
    """Share of iperf3 that large and short transfers reach at each rate."""
    large = by_rate(lines, r"link\.{rate}(?P<series>)", "ratio")
    short = by_rate(lines, r"link\.{rate}\.tokens_(?P<series>\d+)", "ratio")
    series = []
    for name, points in {"large": large.get("", {}), **short}.items():
        shown, target = tuple(sorted(points.items())), LINK_TARGETS.get(name)
        reach = () if target is None else tuple((rate, target) for rate, _ in shown)
        if shown:
            series.append(Series(name if name == "large" else f"{name} tokens", shown, target=reach))
    if not series:
        return None
    return chart.lines(
        "Goodput on a limited link, as a share of iperf3",
        "Method none; iperf3 with one stream on the same link in the same run; dashed: targets",
        _rates({rate: share for item in series for rate, share in item.points}),
        Axis("share of iperf3's goodput", low=0.5),
        series,
    )


def overlap(lines: Sequence[Line]) -> str | None:
    """Hidden share of the wire time against the length of the forward pass."""
    points = tuple(
        sorted((float(length), value) for length, value in by_name(lines, r"overlap\.hidden_share\.([0-9.]+)").items())
    )
    if not points:
        return None
    longest = max(1.0, points[-1][0])
    return chart.lines(
        "Wire time hidden behind the forward pass",
        "Sent layer by layer while later layers are computed",
        Axis("length of the forward pass, in transfers of the same prompt", low=0.0),
        Axis("share of the wire time that is hidden", low=0.0),
        [
            Series("layer by layer", points, target=((1.0, HIDDEN_TARGET), (longest, HIDDEN_TARGET))),
            Series("what can be hidden", ((0.0, 0.0), (1.0, 1.0), (longest, 1.0)), Style.BOUND),
        ],
    )


def transfer(lines: Sequence[Line]) -> str | None:
    """Goodput against the size of a transfer, engine memory to engine memory; other methods at the largest size."""
    goodput = by_name(lines, r"transfer\.(\d+[KMG]iB)")
    if not goodput:
        return None
    sizes = {float(parse_size(text)): text for text in goodput}
    smallest, largest = min(sizes), max(sizes)
    series = [Series("none", tuple((size, goodput[sizes[size]]) for size in sorted(sizes)))]
    for method, value in by_name(lines, r"transfer\.([a-z0-9]+)_gain").items():
        series.append(Series(method, ((largest, value),)))
    for limit in by_name(lines, r"transfer\.limit\.(raw_tcp)").values():
        series.append(Series("raw TCP, one stream", ((smallest, limit), (largest, limit)), Style.BOUND))
    return chart.lines(
        "Engine memory to engine memory, through two sidecars",
        "Goodput of raw KV over loopback TCP, digests checked at both ends",
        Axis("size of a transfer", True, named={size: f"{text[:-3]} {text[-3:]}" for size, text in sizes.items()}),
        Axis("GB/s of raw KV", True),
        series,
    )


def codecs(lines: Sequence[Line]) -> str | None:
    """Speed of each method as a share of memcpy, and the size that it leaves."""
    sizes = by_name(lines, r"codec\.([a-z0-9-]+)\.size")
    encode = by_name(lines, r"codec\.([a-z0-9-]+)\.encode", "ratio")
    decode = by_name(lines, r"codec\.([a-z0-9-]+)\.decode", "ratio")
    groups = []
    for method in encode:
        targets = CODEC_TARGETS.get(method, (None, None))
        pair = (Bar(encode[method], targets[0]), Bar(decode.get(method, 0.0), targets[1]))
        groups.append(Group(method, f"{sizes[method]:.2f} of raw" if method in sizes else "", pair))
    if not groups:
        return None
    return bars.bars(
        "Speed of each method on one core, as a share of memcpy",
        "bf16 chunks of 1 MiB, memcpy in the same rounds; marks across the bars: targets",
        Axis("share of memcpy's speed, raw bytes", low=0.0),
        ("encode", "decode"),
        groups,
    )


PICTURES: Mapping[str, tuple[str, Callable[[Sequence[Line]], str | None]]] = {
    "transfer.svg": ("transfer.jsonl", transfer),
    "codecs.svg": ("codecs.jsonl", codecs),
    "link.svg": ("link.jsonl", link),
    "overlap.svg": ("overlap.jsonl", overlap),
    "crossover.svg": ("crossover.jsonl", crossover),
}
"""Picture, the file of figures that it is made of, and how."""


def _times(points: Mapping[float, float], plain: Mapping[float, float]) -> tuple[Point, ...]:
    return tuple((rate, value / plain[rate]) for rate, value in sorted(points.items()) if rate in plain)


def _choice(size: float | None, rate: float, sizes: Mapping[str, Mapping[float, float]]) -> str:
    """Methods that leave so many bytes at this rate: some leave the same, and `auto` may change its mind on the way."""
    if size is None:
        return ""
    alike = [name for name, at in sizes.items() if rate in at and abs(size / at[rate] - 1) < _SAME_SIZE]
    return " or ".join(alike) or "a mixture"


def _rates(rates: Mapping[float, float]) -> Axis:
    return Axis("rate of the link, Mbit/s", True, named={rate: f"{rate:g}" for rate in sorted(rates)})


def _lines(path: Path) -> list[Line]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read the figures of {path}: {error}") from error
