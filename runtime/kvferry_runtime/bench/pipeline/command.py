"""`kvferry-runtime bench pipeline`: its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from kvferry_runtime.bench.arguments import Benches, add_bench
from kvferry_runtime.bench.rate import parse
from kvferry_runtime.errors import SettingsError

if TYPE_CHECKING:
    from kvferry_runtime.bench.figures import Figure

MODEL = Path("build/models/SmolLM2-135M-Instruct")
"""Where `make` prepares it."""
EXAMPLES = f"""examples:
  kvferry-runtime bench pipeline --json build/bench/pipeline.jsonl
  kvferry-runtime bench pipeline --rate 1gbit --count 9
  kvferry-runtime bench pipeline --model /models/llama --tokens 4000

without root or iproute2 no link can be limited, and without a model nothing can be prefilled: such a part is left out,
and the reason is told. To prepare the model: kvferry-runtime model prepare smollm2 --output {MODEL}
"""


def add_parser(benches: Benches) -> None:
    """Add `pipeline` to `kvferry-runtime bench`."""
    text = "two pipeline stages against one: KV over a link for each, prefill on a core for each"
    parser = add_bench(benches, "pipeline", run, text, EXAMPLES)
    parser.add_argument("--rate", default="250mbit", help="of every link (default: 250mbit)")
    parser.add_argument("--tokens", default=2000, type=int, metavar="N", help="of a prompt (default: 2000)")
    parser.add_argument("--count", default=5, type=int, metavar="N", help="prompts for a figure (default: 5)")
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help=f"that the engines serve (default: {MODEL}, if it is there)"
    )


def run(args: argparse.Namespace) -> int:
    """Print a table, and write JSON lines if asked to; a part that is not possible here is left out, and that is told.

    Raises:
        SettingsError: arguments are wrong, or the file cannot be written.
        KvferryError: a measurement failed.
    """
    from kvferry_runtime.bench import output

    for name, value, most in (("--tokens", args.tokens, 16_384), ("--count", args.count, 100)):
        if not 1 <= value <= most:
            raise SettingsError(f"{name} {value}: allowed are 1 to {most}")
    parts = [*_kv_links(args), *_staged_prefill(args)]
    if parts:
        output.report(chain.from_iterable(parts), args.json)
    return 0


def _kv_links(args: argparse.Namespace) -> Iterator[Iterable[Figure]]:
    from kvferry_runtime.bench import namespaces, output
    from kvferry_runtime.bench.pipeline import kv_links

    plan = kv_links.Plan(parse(args.rate), args.tokens, args.count)
    lacks = namespaces.missing()
    for lack in lacks:
        output.progress(f"bench pipeline, KV over links: skipped: {lack}")
    if not lacks:
        yield kv_links.figures(plan, output.progress)


def _staged_prefill(args: argparse.Namespace) -> Iterator[Iterable[Figure]]:
    from kvferry_runtime.bench import output
    from kvferry_runtime.bench.pipeline import staged_prefill

    model = args.model or MODEL
    lacks = staged_prefill.missing()
    if not (model / "config.json").is_file():
        if args.model is not None:
            raise SettingsError(f"--model {model}: no model is there (it has no config.json)")
        lacks.append(f"no model in {model}: kvferry-runtime model prepare smollm2 --output {model}, or give --model")
    for lack in lacks:
        output.progress(f"bench pipeline, prefill by stages: skipped: {lack}")
    if not lacks:
        yield staged_prefill.figures(staged_prefill.Plan(model, args.tokens, args.count), output.progress)
