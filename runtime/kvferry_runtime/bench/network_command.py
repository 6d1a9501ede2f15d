"""Arguments of the benches that need a network of their own or other programs, and of the plots of their figures."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from kvferry_contract.config import Method
from kvferry_runtime.bench.rate import Rate, parse
from kvferry_runtime.errors import SettingsError

LINK_RATES = "100mbit,250mbit,500mbit,1gbit"
CROSSOVER_RATES = "100mbit,300mbit,1gbit,3gbit,10gbit"
GAIN_METHODS = "int8,fp8,lossless"
FIXED_METHODS = "none,lossless,int8,fp8"

Benches: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_parsers(benches: Benches) -> None:
    """Add `link`, `overlap`, `crossover`, `peers` and `plots` to `kvferry-runtime bench`."""
    link = _parser(benches, "link", run_link, "transfers over links of limited rate, against iperf3 (needs root)")
    link.add_argument("--rates", default=LINK_RATES, help=f"of the link (default: {LINK_RATES})")
    link.add_argument("--method", default=GAIN_METHODS, help=f"measured beside none (default: {GAIN_METHODS})")
    link.add_argument("--seconds", default=2.0, type=_seconds, metavar="S", help="of one large transfer (default: 2)")
    overlap = _parser(benches, "overlap", run_overlap, "how much of a transfer lies behind the forward pass")
    overlap.add_argument(
        "--rate", default="250mbit", help="of the link (default: 250mbit, needs root); none: loopback, without root"
    )
    overlap.add_argument("--count", default=5, type=_count, metavar="N", help="transfers for a figure (default: 5)")
    overlap.add_argument(
        "--model", type=Path, metavar="DIR", help="also with this real model, computed on this machine"
    )
    crossover = _parser(benches, "crossover", run_crossover, "methods and auto against the link's rate (needs root)")
    crossover.add_argument("--rates", default=CROSSOVER_RATES, help=f"of the link (default: {CROSSOVER_RATES})")
    crossover.add_argument("--method", default=FIXED_METHODS, help=f"fixed ones (default: {FIXED_METHODS})")
    crossover.add_argument("--seconds", default=1.0, type=_seconds, metavar="S", help="of a transfer (default: 1)")
    peers = _parser(benches, "peers", run_peers, "NIXL, Mooncake and us in turn (installs them in a cache: 5 GB)")
    peers.add_argument("--layers", default=32, type=_count, metavar="N", help="of a transfer (default: 32)")
    peers.add_argument("--layer-bytes", default="8MiB", metavar="SIZE", help="default: 8MiB")
    peers.add_argument("--rounds", default=3, type=_count, metavar="N", help="turns of everybody (default: 3)")
    peers.add_argument("--count", default=5, type=_count, metavar="N", help="transfers in a turn (default: 5)")
    plots = benches.add_parser("plots", help="draw figures that were written with --json")
    plots.add_argument("source", type=Path, metavar="DIR", help="with transfer.jsonl, link.jsonl, overlap.jsonl, …")
    plots.add_argument(
        "-o", "--output", type=Path, default=Path("docs/plots"), metavar="DIR", help="default: docs/plots"
    )
    plots.set_defaults(func=run_plots)


def run_link(args: argparse.Namespace) -> int:
    """
    Raises:
        SettingsError: arguments are wrong, or the file cannot be written.
        KvferryError: the measurement failed.
    """
    from kvferry_runtime.bench import link, output

    plan = link.Plan(_rates(args.rates, least=1), _methods(args.method), args.seconds)
    if not _possible(args.bench):
        return 0
    output.report(link.figures(plan, output.progress), args.json)
    return 0


def run_overlap(args: argparse.Namespace) -> int:
    """
    Raises:
        SettingsError: arguments are wrong, or the file cannot be written.
        KvferryError: the measurement failed.
    """
    from kvferry_runtime.bench import model_overlap, output, overlap

    plan = overlap.Plan(None if args.rate == "none" else parse(args.rate), args.count)
    if plan.rate is not None and not _possible(args.bench):
        return 0
    real = model_overlap.figures(plan, args.model, output.progress) if args.model else ()
    output.report(chain(overlap.figures(plan, output.progress), real), args.json)
    return 0


def run_crossover(args: argparse.Namespace) -> int:
    """
    Raises:
        SettingsError: arguments are wrong, or the file cannot be written.
        KvferryError: the measurement failed.
    """
    from kvferry_runtime.bench import crossover, output

    plan = crossover.Plan(_rates(args.rates, least=2), _methods(args.method), args.seconds)
    if Method.NONE not in plan.methods or Method.AUTO in plan.methods:
        raise SettingsError("--method: fixed methods are compared, none among them; auto is measured in any case")
    if not _possible(args.bench):
        return 0
    output.report(crossover.figures(plan, output.progress), args.json)
    return 0


def run_peers(args: argparse.Namespace) -> int:
    """
    Raises:
        SettingsError: arguments are wrong, or the file cannot be written.
        KvferryError: the peers cannot be installed, none of them starts, or our own measurement failed.
    """
    from kvferry_runtime.bench import figures, output
    from kvferry_runtime.bench.peers import comparison

    plan = comparison.Plan(args.layers, figures.parse_size(args.layer_bytes), args.rounds, args.count)
    output.report(comparison.figures(plan, output.progress), args.json)
    return 0


def run_plots(args: argparse.Namespace) -> int:
    """
    Raises:
        SettingsError: there are no figures, or a file cannot be read or written.
    """
    from kvferry_runtime.bench import output, plots

    for path in plots.write(args.source, args.output):
        output.progress(f"wrote {path}")
    return 0


def _parser(
    benches: Benches, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser = benches.add_parser(name, help=text)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write one JSON object for each figure")
    parser.set_defaults(func=run)
    return parser


def _possible(bench: str) -> bool:
    """Whether limited links can be made; says what is missing if not, and that nothing was measured."""
    from kvferry_runtime.bench import namespaces, output

    missing = namespaces.missing()
    for lack in missing:
        output.progress(f"bench {bench} is skipped: {lack}")
    return not missing


def _rates(text: str, least: int) -> tuple[Rate, ...]:
    rates = {parse(part) for part in text.split(",")}
    if len(rates) < least:
        raise SettingsError(f"--rates {text}: at least {least} different ones are needed")
    return tuple(sorted(rates, key=lambda item: item.bits))


def _methods(text: str) -> tuple[Method, ...]:
    try:
        return tuple(Method(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise SettingsError(f"--method {text}: {error}; choose of {', '.join(Method)}") from None


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.01 <= value <= 60:
        raise argparse.ArgumentTypeError("0.01 to 60 seconds")
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 100:
        raise argparse.ArgumentTypeError("1 to 100")
    return value
