"""`kvferry-runtime`: the processes of a model's pods, and the tools to look at them."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from kvferry_contract import env, logs
from kvferry_runtime.errors import KvferryError, SettingsError

COMMANDS = ("sidecar", "engine", "router", "probe", "bench", "quality", "model", "timeline")
"""Each is described in `kvferry_runtime.<name>.command` (probe: of the sidecar, model: of the engine, timeline: of
the trace)."""

_MODULES = {
    "probe": "kvferry_runtime.sidecar.probe_command",
    "model": "kvferry_runtime.engine.model_command",
    "timeline": "kvferry_runtime.trace.command",
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvferry-runtime", description=__doc__)
    parser.add_argument("--log-format", choices=("json", "text"), default=os.environ.get(env.LOG_FORMAT, "text"))
    parser.add_argument("--log-level", default=os.environ.get(env.LOG_LEVEL, "info"), metavar="LEVEL")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(_MODULES.get(name, f"kvferry_runtime.{name}.command")).add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 on success, 2 for wrong settings, 1 for another failure."""
    args = build_parser().parse_args(arguments)
    logs.setup(args.log_format, args.log_level)
    try:
        code: int = args.func(args)
    except KeyboardInterrupt:
        return 130
    except KvferryError as error:
        print(f"kvferry-runtime {args.command}: {error}", file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, SettingsError) else 1
    return code


if __name__ == "__main__":
    sys.exit(main())
