"""`kvferry validate`: everything that is wrong with an object, one error a line."""

from __future__ import annotations

import argparse
import sys

from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.cli import documents, unserved
from kvferry_operator.desired.build import build
from kvferry_operator.desired.settings import Settings
from kvferry_operator.errors import InputError, SpecInvalid

_EXAMPLES = """\
examples:
  kvferry validate -f examples/smollm2.yaml
  kvferry validate -f examples/*.yaml
  kubectl get disaggregatedmodels -A -o yaml | kvferry validate -f -
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "validate",
        help="say everything that is wrong with an object",
        description="Check objects as the operator does, with no cluster. Prints each error with its path.",
        epilog=_EXAMPLES + "\nexit code: 0 valid, 2 invalid or unusable",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    documents.add_filenames(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Everything that is wrong with all files is told here, so this raises nothing."""
    models: list[DisaggregatedModel] = []
    errors: list[str] = []
    for name in args.filename:
        try:
            # templates and resources can clash with what is rendered, which shows only then
            models += documents.read_models(name, lambda model: build(model, Settings()))
        except InputError as error:
            errors.append(f"kvferry validate: {error}")
        except SpecInvalid as invalid:
            prefix = f"{name}: " if len(args.filename) > 1 else ""
            errors += [f"{prefix}{error}" for error in invalid.errors]
    for line in errors:
        print(line, file=sys.stderr)  # noqa: T201
    if errors:
        return 2
    unserved.warn(models)
    for model in models:
        sys.stdout.write(f"{model.name}: valid\n")
    sys.stdout.flush()
    return 0
