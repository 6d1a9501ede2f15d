"""`kvferry-runtime probe`: prints what this pod can do, as JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path

from kvferry_contract import env, paths
from kvferry_contract.config import TransportKind

EXAMPLES = """examples:
  kvferry-runtime probe
  kvferry-runtime probe --host 10.0.0.7 --ring-dir /dev/shm
  kubectl exec POD -c kvferry-sidecar -- kvferry-runtime probe
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `probe` to `kvferry-runtime`."""
    parser = subparsers.add_parser(
        "probe",
        help="print what this pod can do: limits, shared memory, devices, UCX lanes (JSON)",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--host",
        default=os.environ.get(env.POD_IP, "127.0.0.1"),
        help=f"address to connect to ourselves at (default: ${env.POD_IP}, else 127.0.0.1)",
    )
    parser.add_argument(
        "--ring-dir",
        type=Path,
        default=Path(os.environ.get(env.RING_DIR, paths.RING_DIR)),
        metavar="DIR",
        help=f"where the ring will lie (default: ${env.RING_DIR}, else {paths.RING_DIR})",
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Always 0: what cannot be done is a finding."""
    from kvferry_runtime.sidecar.probe import probe
    from kvferry_runtime.transport.base import Transport

    def make_transport(kind: TransportKind) -> Transport:
        from kvferry_runtime.transport.ucx import UcxTransport

        return UcxTransport(kind, os.environ)

    print(json.dumps(asyncio.run(probe(make_transport, args.host, args.ring_dir)), indent=2))  # noqa: T201
    return 0
