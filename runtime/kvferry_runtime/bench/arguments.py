"""What the arguments of every bench have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Benches: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_bench(
    benches: Benches, name: str, run: Callable[[argparse.Namespace], int], text: str, examples: str
) -> argparse.ArgumentParser:
    """Add one that measures. text: what, for the list of benches. examples: how to call it, as they are printed."""
    parser = benches.add_parser(
        name,
        help=text,
        description=f"Measure {text}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write one JSON object for each figure")
    parser.set_defaults(func=run)
    return parser
