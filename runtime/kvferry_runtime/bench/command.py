"""`kvferry-runtime bench`: its arguments."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO

from kvferry_contract.config import TransportKind
from kvferry_runtime.errors import SettingsError

SIZES = "64KiB,1MiB,16MiB,256MiB"
METHODS = "none,int8,fp8"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` to `kvferry-runtime`."""
    parser = subparsers.add_parser("bench", help="measure transfers and the router on this machine")
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    transfer = benches.add_parser(
        "transfer", help="engine memory to engine memory through two sidecars, against memcpy and raw TCP"
    )
    transfer.add_argument("--json", type=Path, metavar="FILE", help="also write one JSON object for each figure")
    transfer.add_argument("--sizes", default=SIZES, help=f"raw bytes of a transfer (default: {SIZES})")
    transfer.add_argument("--method", default=METHODS, help=f"methods to measure (default: {METHODS})")
    transfer.add_argument(
        "--transport",
        choices=[kind.value for kind in TransportKind],
        default=TransportKind.TCP.value,
        help="default: tcp, which raw TCP can be compared with",
    )
    transfer.add_argument("--chunk-bytes", default="1MiB", metavar="SIZE", help="default: 1MiB")
    transfer.add_argument("--inflight-chunks", default=8, type=int, metavar="N", help="default: 8")
    transfer.add_argument("--buffer-bytes", default="64MiB", metavar="SIZE", help="ring of each side; default: 64MiB")
    transfer.add_argument(
        "--budget", default="2GiB", metavar="SIZE", help="bytes to move for each size (default: 2GiB)"
    )
    transfer.set_defaults(func=run_transfer)
    router = benches.add_parser("router", help="what the router adds to a request, and its rate, with stub engines")
    router.add_argument("--json", type=Path, metavar="FILE", help="also write one JSON object for each figure")
    router.add_argument("--requests", default=2000, type=int, metavar="N", help="for the rate (default: 2000)")
    router.add_argument("--at-a-time", default=32, type=int, metavar="N", help="default: 32")
    router.add_argument("--tokens", default=16, type=int, metavar="N", help="of an answer (default: 16)")
    router.add_argument("--prompt-tokens", default=512, type=int, metavar="N", help="of a prompt (default: 512)")
    router.set_defaults(func=run_router)


def run_transfer(args: argparse.Namespace) -> int:
    """Print a table, and write JSON lines if asked to.

    Raises:
        SettingsError: arguments are wrong, or the file cannot be written.
        KvferryError: the measurement failed.
    """
    from kvferry_runtime.bench import chain, figures, transfer

    plan = transfer.Plan(
        sizes=tuple(sorted(map(figures.parse_size, args.sizes.split(",")))),
        methods=tuple(method.strip() for method in args.method.split(",") if method.strip()),
        rings=chain.Rings(
            transport=TransportKind(args.transport),
            chunk_bytes=figures.parse_size(args.chunk_bytes),
            inflight_chunks=args.inflight_chunks,
            buffer_bytes=figures.parse_size(args.buffer_bytes),
        ),
        budget_bytes=figures.parse_size(args.budget),
    )
    plan.check()
    found = []
    with _lines(args.json) as file:
        for figure in transfer.figures(plan, _progress):
            found.append(figure)
            if file is not None:
                file.write(figure.line() + "\n")
                file.flush()
    sys.stdout.write(figures.table(found) + "\n")
    return 0


def run_router(args: argparse.Namespace) -> int:
    """Print a table, and write JSON lines if asked to.

    Raises:
        SettingsError: arguments are wrong, or the file cannot be written.
        KvferryError: the measurement failed.
    """
    from kvferry_runtime.bench import figures, router

    load = router.Load(args.requests, args.at_a_time, args.tokens, args.prompt_tokens)
    load.check()
    with _lines(args.json) as file:
        found = router.figures(load)
        if file is not None:
            file.writelines(figure.line() + "\n" for figure in found)
    sys.stdout.write(figures.table(found) + "\n")
    return 0


def _lines(path: Path | None) -> AbstractContextManager[IO[str] | None]:
    if path is None:
        return nullcontext()
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}") from error


def _progress(step: str) -> None:
    sys.stderr.write(f"… {step}\n")
    sys.stderr.flush()
