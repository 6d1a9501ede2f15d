"""`kvferry validate`: everything that is wrong with an object, one error a line."""

from __future__ import annotations

import argparse
import sys

from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.cli import documents
from kvferry_operator.desired.build import build
from kvferry_operator.desired.settings import Settings
from kvferry_operator.errors import FieldError, SpecInvalid

_EXAMPLES = """\
examples:
  kvferry validate -f examples/smollm2.yaml
  helm template mychart | kvferry validate -f -
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "validate",
        help="say everything that is wrong with an object",
        description="Check objects as the operator does, with no cluster. Prints each error with its path.",
        epilog=_EXAMPLES + "\nexit code: 0 valid, 2 invalid or unusable",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-f", "--filename", required=True, nargs="+", metavar="FILE", help="YAML or JSON; - is standard input"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """
    Raises:
        InputError: the file cannot be used. SpecInvalid: an object in it is refused.
    """
    models: list[DisaggregatedModel] = []
    errors: list[FieldError] = []
    for name in args.filename:
        try:
            models += documents.read_models(name)
        except SpecInvalid as invalid:
            prefix = f"{name}: " if len(args.filename) > 1 else ""
            errors += [FieldError(f"{prefix}{error.path}", error.message) for error in invalid.errors]
    if errors:
        raise SpecInvalid(errors)
    for model in models:
        # templates and resources can clash with what is rendered, which shows only then
        build(model, Settings())
    for model in models:
        sys.stdout.write(f"{model.name}: valid\n")
    sys.stdout.flush()
    return 0
