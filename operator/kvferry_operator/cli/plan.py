"""`kvferry plan`: the objects that serve a model, as they would be applied."""

from __future__ import annotations

import argparse
import sys

from kvferry_operator.cli import documents, unserved
from kvferry_operator.desired.build import build
from kvferry_operator.desired.settings import Settings

_EXAMPLES = """\
examples:
  kvferry plan -f examples/smollm2.yaml
  kvferry plan -f examples/smollm2.yaml -o json
  cat model.yaml | kvferry plan -f - | kubectl diff -f -
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="print the objects that serve a model",
        description="Print every object that serves a model (but the Secret with its key, made when applied).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    documents.add_filenames(parser)
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml", help="default: yaml")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """
    Raises:
        InputError: the file cannot be used. SpecInvalid: an object in it is refused.
    """
    settings = Settings()
    models = [model for name in args.filename for model in documents.read_models(name)]
    unserved.warn(models)
    objects = [item for model in models for item in build(model, settings)]
    sys.stdout.write(documents.dump_json(objects) if args.output == "json" else documents.dump_yaml(objects))
    sys.stdout.flush()
    return 0
