"""`kvferry-runtime sidecar`: settings come from the environment, as the operator renders it."""

from __future__ import annotations

import argparse
import os

from kvferry_contract import env

EXAMPLES = f"""examples:
  {env.CONFIG}=config.json {env.KEY_FILE}=key {env.RING_DIR}=/dev/shm/a {env.POD_IP}=127.0.0.1 kvferry-runtime sidecar
  kvferry-runtime sidecar --trace sidecar.json          # in a pod, where the variables are set
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `sidecar` to `kvferry-runtime`."""
    parser = subparsers.add_parser(
        "sidecar",
        help="move the KV cache between this pod and others",
        description="Runs until SIGTERM, then lets open transfers end. Settings come from the environment:\n"
        f"{env.CONFIG}, {env.ROLE}, {env.RING_DIR}, {env.KEY_FILE}, {env.POD_IP}, {env.POD_NAME}.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--trace", metavar="FILE", help=f"write a timeline there at the end; ${env.TRACE} if not given, else none"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Serve. 0 after a clean stop.

    Raises:
        SettingsError: a setting is missing or wrong.
    """
    from kvferry_runtime.sidecar import process
    from kvferry_runtime.sidecar.settings import SidecarSettings

    trace = {env.TRACE: args.trace} if args.trace else {}
    return process.run(SidecarSettings.from_environment(os.environ | trace))
