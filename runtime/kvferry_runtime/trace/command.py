"""`kvferry-runtime timeline`: traces of engines and sidecars as one picture, or as one file for Perfetto."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvferry_runtime.errors import SettingsError

EXAMPLES = """examples:
  kvferry-runtime timeline traces/demo-fp8/*.json                    # a summary alone
  kvferry-runtime timeline traces/demo-fp8/*.json -o timeline.svg    # a row for each layer, and a summary
  kvferry-runtime timeline traces/demo-fp8/*.json -o all.json        # all pods in one view of Perfetto
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `timeline` to `kvferry-runtime`."""
    parser = subparsers.add_parser(
        "timeline",
        help="draw the traces that --trace wrote",
        description="Prints how much of the transfers was hidden behind the forward pass, and where the time went.\n"
        "Each trace alone also opens in Perfetto (ui.perfetto.dev).",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="of engines and sidecars, together")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="out.svg: a picture; out.json: one trace of them all"
    )
    parser.add_argument("--transfer", default="", metavar="ID", help="only transfers whose id begins so (default: all)")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """
    Raises:
        SettingsError: a file cannot be read or written, or is none of ours.
    """
    from kvferry_runtime.trace import chrome, drawing, summary

    output: Path | None = args.output
    if output is not None and output.suffix not in (".svg", ".json"):
        raise SettingsError(f"--output {output}: choose a name that ends in .svg (a picture) or .json (for Perfetto)")
    read = [trace for path in args.files for trace in chrome.load(_read(path), str(path))]
    traces = [trace.only(args.transfer) for trace in read]
    if args.transfer and not any(trace.events for trace in traces):
        raise SettingsError(f"--transfer {args.transfer}: no transfer of these files begins with it")
    if output is not None:
        _write(output, drawing.draw(traces) if output.suffix == ".svg" else chrome.dump(traces))
    sys.stdout.write(summary.table(summary.summarise(traces)) + "\n")
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read the trace {path}: {error}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}") from error
