"""`kvferry-runtime engine`: the reference engine."""

from __future__ import annotations

import argparse
import asyncio
import os

from kvferry_runtime.engine.reference import settings, source

EXAMPLES = """examples:
  kvferry-runtime engine --model build/models/SmolLM2-135M-Instruct                       # all of a model, port 8000
  kvferry-runtime engine --model /models/llama --served-name llama --device cuda --max-batch 32
  KVFERRY_CONFIG=config.json KVFERRY_RING_DIR=/run/kvferry kvferry-runtime engine --trace engine.json     # in a pod
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "engine",
        help="serve a model with the reference engine",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    settings.add_arguments(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    chosen = settings.read(args)
    if not chosen.model.uri.startswith("hf://"):
        source.resolve(chosen.model)  # a wrong folder is told before seconds of imports
    # OpenMP threads that wait for a core spin by default, and keep it from whom they wait for; read at import
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from kvferry_runtime.engine.reference import service

    return asyncio.run(service.serve(chosen))
