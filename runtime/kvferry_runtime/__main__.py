"""`kvferry-runtime`: the processes of a model's pods, and the tools to look at them."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence

from kvferry_contract import env, logs
from kvferry_runtime import open_files
from kvferry_runtime.errors import KvferryError, SettingsError

COMMANDS = ("sidecar", "engine", "router", "probe", "bench", "quality", "model", "timeline")
"""Each is described in `kvferry_runtime.<name>.command` (probe: of the sidecar, model: of the engine, timeline: of
the trace)."""

_MODULES = {
    "probe": "kvferry_runtime.sidecar.probe_command",
    "model": "kvferry_runtime.engine.model_command",
    "timeline": "kvferry_runtime.trace.command",
}

EXAMPLES = """examples:
  kvferry-runtime probe
  kvferry-runtime model prepare smollm2 --output build/models/SmolLM2-135M-Instruct
  kvferry-runtime --log-level debug engine --model build/models/SmolLM2-135M-Instruct

`kvferry-runtime COMMAND --help` shows more of each
"""
_FORMAT, _LEVEL = "text", "info"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvferry-runtime",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--log-format",
        type=str.lower,
        choices=logs.FORMATS,
        help=f"of the lines on standard error (default: ${env.LOG_FORMAT}, else {_FORMAT})",
    )
    parser.add_argument(
        "--log-level",
        type=str.lower,
        choices=logs.LEVELS,
        help=f"lines below it are left out (default: ${env.LOG_LEVEL}, else {_LEVEL})",
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(_MODULES.get(name, f"kvferry_runtime.{name}.command")).add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 on success, 2 for wrong settings, 1 for another failure."""
    args = build_parser().parse_args(arguments)
    try:
        logs.setup(
            args.log_format or _from(os.environ, env.LOG_FORMAT, logs.FORMATS, _FORMAT),
            args.log_level or _from(os.environ, env.LOG_LEVEL, logs.LEVELS, _LEVEL),
        )
        open_files.allow_many()
        code: int = args.func(args)
    except KeyboardInterrupt:
        return 130
    except KvferryError as error:
        print(f"kvferry-runtime {args.command}: {error}", file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, SettingsError) else 1
    return code


def _from(environ: Mapping[str, str], variable: str, allowed: Sequence[str], usual: str) -> str:
    value = environ.get(variable) or usual
    if value.lower() not in allowed:
        raise SettingsError(f"{variable}={value}: allowed are {', '.join(allowed)}")
    return value.lower()


if __name__ == "__main__":
    sys.exit(main())
