"""`kvferry-runtime quality`: what each method costs in quality, with your model and your text.

Contexts of real text are computed by the reference engine, their KV goes through encode and decode of each method (and
sparse ones leave tokens out for good), and the model goes on from there: with the tokens that really follow, and with
tokens of its own choice. Everything is compared with the same model on the KV as it was computed.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO

from kvferry_runtime.errors import SettingsError

EXAMPLES = """examples:
  kvferry-runtime quality --model build/models/SmolLM2-135M-Instruct
  kvferry-runtime quality --model /models/llama --text my-prompts.txt --methods fp8,int8,sparse50 --json quality.jsonl
  kvferry-runtime quality --model /models/llama --context 4096 --windows 4 --device cuda
"""
_LIMITS = (
    ("--windows", 1, 1000),
    ("--context", 1, 1 << 20),
    ("--next", 1, 4096),
    ("--keep-first", 0, 1 << 20),
    ("--keep-last", 0, 1 << 20),
    ("--threads", 1, 1024),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `quality` to `kvferry-runtime`."""
    parser = subparsers.add_parser(
        "quality",
        help="measure what each compression method costs in quality",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="Hugging Face model folder")
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="UTF-8 text to take contexts from; default: Python's own reference"
    )
    parser.add_argument("--windows", type=int, default=9, metavar="N", help="contexts to measure (default: 9)")
    parser.add_argument("--context", type=int, default=1024, metavar="N", help="tokens of each (default: 1024)")
    parser.add_argument("--next", type=int, default=128, metavar="N", help="tokens predicted after it (default: 128)")
    parser.add_argument("--methods", default="", metavar="A,B", help="methods to measure (default: all there are)")
    parser.add_argument("--keep-first", type=int, default=16, metavar="N", help="keepExact.first (default: 16)")
    parser.add_argument("--keep-last", type=int, default=64, metavar="N", help="keepExact.last (default: 64)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="draws the contexts (default: 0)")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU where there is one"
    )
    parser.add_argument("--dtype", choices=("auto", "bf16", "fp16", "fp32"), default="auto", help="auto: as saved")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="of the CPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write one JSON object for each figure")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print a table, and write JSON lines if asked to.

    Raises:
        SettingsError: arguments are wrong, the text is too short, or the file cannot be written.
        KvferryError: the model cannot be loaded, or a method cannot carry its KV.
    """
    _check(args)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in the engine; read when torch is imported
    from kvferry_runtime.quality import report, session
    from kvferry_runtime.quality.carriage import Exact

    plan = session.Plan(
        model=args.model,
        text=args.text,
        windows=args.windows,
        context=args.context,
        following=args.next,
        methods=tuple(name.strip() for name in args.methods.split(",") if name.strip()),
        exact=Exact(args.keep_first, args.keep_last),
        seed=args.seed,
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
    )
    with _lines(args.json) as file:
        outcome = session.run(plan, _say)
        if file is not None:
            file.writelines(figure.line() + "\n" for figure in report.figures(outcome.exact, outcome.drifts))
    sys.stdout.write(f"{outcome.conditions}\n\n{report.table(outcome.exact, outcome.drifts)}\n")
    return 0


def _check(args: argparse.Namespace) -> None:
    for name, least, most in _LIMITS:
        value = getattr(args, name.removeprefix("--").replace("-", "_"))
        if not least <= value <= most:
            raise SettingsError(f"{name} {value}: allowed are {least} to {most}")


def _lines(path: Path | None) -> AbstractContextManager[IO[str] | None]:
    if path is None:
        return nullcontext()
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}") from error


def _say(step: str) -> None:
    sys.stderr.write(f"… {step}\n")
    sys.stderr.flush()
