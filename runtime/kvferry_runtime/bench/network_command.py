"""Arguments of the benches that need a network of their own or other programs, and of the plots of their figures."""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path

from kvferry_contract.config import Method
from kvferry_runtime.bench.arguments import Benches, add_bench
from kvferry_runtime.bench.rate import Rate, parse
from kvferry_runtime.errors import SettingsError

LINK_RATES = "100mbit,250mbit,500mbit,1gbit"
CROSSOVER_RATES = "100mbit,300mbit,1gbit,3gbit,10gbit"
GAIN_METHODS = "int8,fp8,lossless"
FIXED_METHODS = "none,lossless,int8,fp8"

_LINK_EXAMPLES = """examples:
  kvferry-runtime bench link --json build/bench/link.jsonl
  kvferry-runtime bench link --rates 250mbit,1gbit --method int8 --seconds 1
"""
_OVERLAP_EXAMPLES = """examples:
  kvferry-runtime bench overlap --json build/bench/overlap.jsonl
  kvferry-runtime bench overlap --rate none
  kvferry-runtime bench overlap --rate 1gbit --model build/models/SmolLM2-135M-Instruct
"""
_CROSSOVER_EXAMPLES = """examples:
  kvferry-runtime bench crossover --json build/bench/crossover.jsonl
  kvferry-runtime bench crossover --rates 100mbit,10gbit --method none,int8
"""
_PEERS_EXAMPLES = """examples:
  kvferry-runtime bench peers --json build/bench/peers.jsonl
  kvferry-runtime bench peers --rounds 1 --layers 8
"""
_PLOTS_EXAMPLES = """examples:
  kvferry-runtime bench plots build/bench --output docs/plots
"""


def add_parsers(benches: Benches) -> None:
    """Add `link`, `overlap`, `crossover`, `peers` and `plots` to `kvferry-runtime bench`."""
    link = add_bench(
        benches,
        "link",
        run_link,
        "transfers over links of limited rate, against iperf3 (needs root)",
        _LINK_EXAMPLES,
    )
    link.add_argument(
        "--rates", default=LINK_RATES, metavar="A,B", help=f"of the link, with commas between (default: {LINK_RATES})"
    )
    link.add_argument(
        "--method",
        default=GAIN_METHODS,
        metavar="A,B",
        help=f"methods measured beside none, with commas between (default: {GAIN_METHODS})",
    )
    link.add_argument("--seconds", default=2.0, type=_seconds, metavar="S", help="of one large transfer (default: 2)")
    overlap = add_bench(
        benches, "overlap", run_overlap, "how much of a transfer lies behind the forward pass", _OVERLAP_EXAMPLES
    )
    overlap.add_argument(
        "--rate", default="250mbit", help="of the link (default: 250mbit, needs root); none: loopback, without root"
    )
    overlap.add_argument("--count", default=5, type=_count, metavar="N", help="transfers for a figure (default: 5)")
    overlap.add_argument(
        "--model", type=Path, metavar="DIR", help="also with this real model, computed on this machine"
    )
    crossover = add_bench(
        benches,
        "crossover",
        run_crossover,
        "methods and auto against the link's rate (needs root)",
        _CROSSOVER_EXAMPLES,
    )
    crossover.add_argument(
        "--rates",
        default=CROSSOVER_RATES,
        metavar="A,B",
        help=f"of the link, with commas between, at least two (default: {CROSSOVER_RATES})",
    )
    crossover.add_argument(
        "--method",
        default=FIXED_METHODS,
        metavar="A,B",
        help=f"fixed methods, with commas between, none among them (default: {FIXED_METHODS})",
    )
    crossover.add_argument("--seconds", default=1.0, type=_seconds, metavar="S", help="of a transfer (default: 1)")
    peers = add_bench(
        benches,
        "peers",
        run_peers,
        "NIXL, Mooncake and us in turn (installs them in a cache: 5 GB)",
        _PEERS_EXAMPLES,
    )
    peers.add_argument("--layers", default=32, type=_count, metavar="N", help="of a transfer (default: 32)")
    peers.add_argument("--layer-bytes", default="8MiB", metavar="SIZE", help="of one layer (default: 8MiB)")
    peers.add_argument("--rounds", default=3, type=_count, metavar="N", help="turns of everybody (default: 3)")
    peers.add_argument("--count", default=5, type=_count, metavar="N", help="transfers in a turn (default: 5)")
    plots = benches.add_parser(
        "plots",
        help="draw figures that were written with --json",
        epilog=_PLOTS_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plots.add_argument("source", type=Path, metavar="DIR", help="with transfer.jsonl, link.jsonl, overlap.jsonl, …")
    plots.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("docs/plots"),
        metavar="DIR",
        help="to draw into (default: docs/plots)",
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
