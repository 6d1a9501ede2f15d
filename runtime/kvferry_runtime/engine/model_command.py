"""`kvferry-runtime model`: get a model that an engine can serve."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvferry_runtime.engine import demo_model

EXAMPLES = """examples:
  kvferry-runtime model prepare smollm2 --output build/models/SmolLM2-135M-Instruct
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "model",
        help="prepare a model folder",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    prepare = actions.add_parser(
        "prepare",
        help="make a Hugging Face folder of a small model, for the demo and tests",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prepare.add_argument("model", choices=(demo_model.NAME,), help="SmolLM2-135M-Instruct, 270 MB as bf16")
    prepare.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder to make; kept if it is there"
    )
    prepare.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    output = args.output.absolute()
    made = demo_model.prepare(output, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
    print(f"{output} {'is ready' if made else 'was ready already'}", file=sys.stderr)  # noqa: T201
    return 0
