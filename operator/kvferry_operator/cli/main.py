"""kvferry: check, preview and run models whose prefill and decode are apart."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from kvferry_operator.desired.settings import release
from kvferry_operator.errors import InputError, OperatorError, SpecInvalid

COMMANDS = ("plan", "validate", "local", "demo")
"""Each is described in `kvferry_operator.cli.<name>`, which is cheap to import."""

_EXAMPLES = """\
examples:
  kvferry validate -f examples/smollm2.yaml      say everything that is wrong with an object
  kvferry plan -f examples/smollm2.yaml          print the objects that would be applied
  kvferry local up -f examples/smollm2.yaml      serve it on this machine, without a cluster
  kvferry demo                                   see a prompt's KV cache move, with proof
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvferry",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kvferry {release()}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"kvferry_operator.cli.{name}").add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 on success, 2 for a wrong object or setting, 1 for another failure."""
    return exit_code(build_parser().parse_args(arguments))


def exit_code(args: argparse.Namespace) -> int:
    """Run the command that was parsed, and tell its errors to a person."""
    try:
        code: int = args.func(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # whoever read our output has seen enough; what is still buffered goes nowhere, without a traceback at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SpecInvalid as invalid:
        for error in invalid.errors:
            print(error, file=sys.stderr)  # noqa: T201
        return 2
    except OperatorError as error:
        print(f"kvferry {args.command}: {error}", file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, InputError) else 1
    return code


if __name__ == "__main__":
    sys.exit(main())
