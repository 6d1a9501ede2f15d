"""`kvferry demo`: real prompts to a small model, with prefill and decode apart and in one engine, side by side."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from kvferry_contract.config import Method, Role
from kvferry_operator.errors import InputError
from kvferry_operator.local.host import check_linux

_METHODS = tuple(method.value for method in Method)
_EXAMPLES = """\
examples:
  kvferry demo
  kvferry demo --compression none --decode 2
  kvferry demo --compression lossless,int8,fp4,sparse50,auto
  kvferry demo --prefill-stages 2 --decode-stages 2
  kvferry demo --json demo.jsonl

exit code: 0 when every KV cache was transferred and, with none and lossless, not a token differs; else 1
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="see a prompt's KV cache move, with proof",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--compression", default="none,fp8", metavar="LIST", help=f"of {', '.join(_METHODS)} (default: none,fp8)"
    )
    parser.add_argument("--prefill", type=int, default=1, metavar="N", help="prefill groups (default: 1)")
    parser.add_argument("--decode", type=int, default=1, metavar="N", help="decode groups (default: 1)")
    parser.add_argument(
        "--prefill-stages",
        type=int,
        default=1,
        metavar="N",
        help="pipeline stages of a prefill group: pods that hold a part of the layers each (default: 1)",
    )
    parser.add_argument(
        "--decode-stages", type=int, default=1, metavar="N", help="pipeline stages of a decode group (default: 1)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON object a line here")
    parser.add_argument("--model-dir", type=Path, metavar="DIR", help="folder of models (made if missing)")
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help="keep the containers' logs here")
    parser.add_argument(
        "--trace", type=Path, metavar="DIR", help="write timelines here; draw them with `kvferry-runtime timeline`"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """
    Raises:
        InputError: an argument cannot be used. LocalError, DemoFailed: it does not run, or shows nothing.
    """
    methods = tuple(dict.fromkeys(part.strip() for part in args.compression.split(",")))
    for method in methods:
        if method not in _METHODS:
            raise InputError(f"--compression: {method!r} is not one of {', '.join(_METHODS)}")
    if args.json:
        _check_writable(args.json)
    if args.prefill < 1 or args.decode < 1:
        raise InputError("--prefill and --decode must be at least 1")
    stages = {Role.PREFILL: args.prefill_stages, Role.DECODE: args.decode_stages}
    if min(stages.values()) < 1:
        raise InputError("--prefill-stages and --decode-stages must be at least 1: one stage holds all layers")
    check_linux()
    from kvferry_operator.demo import report
    from kvferry_operator.demo.run import Demo, Plan
    from kvferry_operator.local import folders
    from kvferry_operator.local.signals import until_signal

    folders.make("--log-dir", args.log_dir)
    folders.make("--trace", args.trace)
    plan = Plan(methods, args.prefill, args.decode, stages, args.model_dir, args.log_dir, args.trace)
    demo = Demo(plan, _progress)
    rows = asyncio.run(until_signal(demo.run(), demo.kill, _progress))
    if rows is None:
        _progress("stopped; nothing is left running")
        return 130
    sys.stdout.write("".join(f"{line}\n" for line in report.lines(rows)))
    if args.json:
        args.json.write_text("".join(f"{json.dumps(row.to_json())}\n" for row in rows), encoding="utf-8")
    failures = report.failures(rows)
    for line in failures:
        print(f"FAILED: {line}", file=sys.stderr)  # noqa: T201
    return 1 if failures else 0


def _check_writable(file: Path) -> None:
    """Before a minute of work whose result has no place to go to."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        raise InputError(f"--json {file}: cannot be written: {error.strerror}") from error


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
