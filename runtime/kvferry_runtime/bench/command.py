"""`kvferry-runtime bench`: its arguments."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvferry_contract.config import TransportKind
from kvferry_runtime.bench import network_command
from kvferry_runtime.bench.arguments import add_bench
from kvferry_runtime.bench.pipeline import command as pipeline_command

SIZES = "64KiB,1MiB,16MiB,256MiB"
METHODS = "none,int8,fp8"

_EXAMPLES = """examples:
  kvferry-runtime bench transfer --json build/bench/transfer.jsonl
  kvferry-runtime bench overlap --rate none
  kvferry-runtime bench plots build/bench --output docs/plots

`kvferry-runtime bench BENCH --help` shows what each can be asked for
"""
_TRANSFER_EXAMPLES = """examples:
  kvferry-runtime bench transfer --json build/bench/transfer.jsonl
  kvferry-runtime bench transfer --sizes 1MiB,64MiB --method none,int8
  kvferry-runtime bench transfer --transport shm --method none --chunk-bytes 1MiB
"""
_ROUTER_EXAMPLES = """examples:
  kvferry-runtime bench router --json build/bench/router.jsonl
  kvferry-runtime bench router --requests 500 --at-a-time 8
"""
_CODECS_EXAMPLES = """examples:
  kvferry-runtime bench codecs --json build/bench/codecs.jsonl
  kvferry-runtime bench codecs --method int8,lossless --model build/models/SmolLM2-135M-Instruct
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` to `kvferry-runtime`."""
    parser = subparsers.add_parser(
        "bench",
        help="measure transfers, methods, limited links, overlap, stages, peers and the router on this machine",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    transfer = add_bench(
        benches,
        "transfer",
        run_transfer,
        "engine memory to engine memory through two sidecars, against memcpy and raw TCP",
        _TRANSFER_EXAMPLES,
    )
    transfer.add_argument(
        "--sizes", default=SIZES, metavar="A,B", help=f"raw bytes of a transfer, with commas between (default: {SIZES})"
    )
    transfer.add_argument(
        "--method",
        default=METHODS,
        metavar="A,B",
        help=f"methods to measure, with commas between, none among them (default: {METHODS})",
    )
    transfer.add_argument(
        "--transport",
        choices=[kind.value for kind in TransportKind],
        default=TransportKind.TCP.value,
        help="what the sidecars use (default: tcp, which raw TCP can be compared with)",
    )
    transfer.add_argument("--chunk-bytes", default="4MiB", metavar="SIZE", help="of one chunk (default: 4MiB)")
    transfer.add_argument(
        "--inflight-chunks", default=4, type=int, metavar="N", help="chunks on their way at a time (default: 4)"
    )
    transfer.add_argument("--buffer-bytes", default="64MiB", metavar="SIZE", help="ring of each side (default: 64MiB)")
    transfer.add_argument(
        "--budget", default="2GiB", metavar="SIZE", help="bytes to move for each size (default: 2GiB)"
    )
    router = add_bench(
        benches,
        "router",
        run_router,
        "what the router adds to a request, and its rate, with stub engines",
        _ROUTER_EXAMPLES,
    )
    router.add_argument("--requests", default=2000, type=int, metavar="N", help="for the rate (default: 2000)")
    router.add_argument("--at-a-time", default=32, type=int, metavar="N", help="requests in flight (default: 32)")
    router.add_argument("--tokens", default=16, type=int, metavar="N", help="of an answer (default: 16)")
    router.add_argument("--prompt-tokens", default=512, type=int, metavar="N", help="of a prompt (default: 512)")
    codecs = add_bench(
        benches,
        "codecs",
        run_codecs,
        "speed, size and error of every method on host memory, against memcpy",
        _CODECS_EXAMPLES,
    )
    codecs.add_argument(
        "--method", metavar="A,B", help="methods to measure, with commas between (default: all for host memory)"
    )
    codecs.add_argument(
        "--model", type=Path, metavar="DIR", help="take KV of this model (default: Gaussian data with outlier channels)"
    )
    network_command.add_parsers(benches)
    pipeline_command.add_parser(benches)


def run_transfer(args: argparse.Namespace) -> int:
    """Print a table, and write JSON lines if asked to.

    Raises:
        SettingsError: arguments are wrong, or the file cannot be written.
        KvferryError: the measurement failed.
    """
    from kvferry_runtime.bench import figures, output, pods, transfer

    plan = transfer.Plan(
        sizes=tuple(sorted(map(figures.parse_size, args.sizes.split(",")))),
        methods=tuple(method.strip() for method in args.method.split(",") if method.strip()),
        rings=pods.Rings(
            transport=TransportKind(args.transport),
            chunk_bytes=figures.parse_size(args.chunk_bytes),
            inflight_chunks=args.inflight_chunks,
            buffer_bytes=figures.parse_size(args.buffer_bytes),
        ),
        budget_bytes=figures.parse_size(args.budget),
    )
    plan.check()
    output.report(transfer.figures(plan, output.progress), args.json)
    return 0


def run_router(args: argparse.Namespace) -> int:
    """Print a table, and write JSON lines if asked to.

    Raises:
        SettingsError: arguments are wrong, or the file cannot be written.
        KvferryError: the measurement failed.
    """
    from kvferry_runtime.bench import output, router

    load = router.Load(args.requests, args.at_a_time, args.tokens, args.prompt_tokens)
    load.check()
    output.report(router.figures(load), args.json)
    return 0


def run_codecs(args: argparse.Namespace) -> int:
    """Print a table, and write JSON lines if asked to.

    Raises:
        SettingsError: arguments are wrong, or the file cannot be written.
        KvferryError: the model cannot be loaded, or a method cannot carry its KV.
    """
    from kvferry_runtime.bench import codecs, kv_samples, output
    from kvferry_runtime.codec.registry import HOST_METHODS

    methods = HOST_METHODS if args.method is None else tuple(args.method.split(","))
    codecs.check_methods(methods)
    sample = kv_samples.gaussian() if args.model is None else kv_samples.of_model(args.model)
    output.report(codecs.figures(sample, methods, output.progress), args.json)
    return 0
