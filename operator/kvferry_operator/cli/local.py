"""`kvferry local`: run a model on this machine, look at it, stop it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

from kvferry_operator.cli import documents
from kvferry_operator.errors import InputError
from kvferry_operator.local.host import check_linux

_EXAMPLES = """\
examples:
  kvferry local up -f examples/smollm2.yaml                      until Ctrl-C
  kvferry local up -f model.yaml --set-model ~/models/my-model   another model's folder
  kvferry local ps                                               pods of all instances
  kvferry local logs decode -c engine -f                         follow the log of one container
  kvferry local down smollm2
"""
_UP_EXAMPLES = """\
examples:
  kvferry local up -f examples/smollm2.yaml                      until Ctrl-C
  kvferry local up -f model.yaml --set-model ~/models/my-model   another model's folder
  kvferry local up -f model.yaml --name second                   the same object once more, at other addresses
  kvferry local up -f model.yaml --log-dir logs                  keep the logs
"""
_PS_EXAMPLES = """\
examples:
  kvferry local ps
  watch kvferry local ps

The router sends a short canary request now and then, which proves that KV crosses: its transfers are shown too.
"""
_LOGS_EXAMPLES = """\
examples:
  kvferry local logs                      all containers
  kvferry local logs decode -c engine -f  follow the engine of decode
  kvferry local logs --name smollm2       when several instances run
"""
_DOWN_EXAMPLES = """\
examples:
  kvferry local down               the only instance
  kvferry local down smollm2
  kvferry local down --grace 10    kill what has not ended after 10 s
"""
_SAMPLE_SECONDS = 0.3
_SHOWN_TRANSFERS = 8
_FOLLOW_SECONDS = 0.2
_MAX_SECONDS = 86_400


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "local",
        help="run a model on this machine",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_up(actions)
    ps = _action(actions, "ps", "show the pods and the last transfers of all that runs here", _PS_EXAMPLES)
    ps.set_defaults(func=run_ps)
    logs = _action(actions, "logs", "print the containers' logs", _LOGS_EXAMPLES)
    logs.add_argument("pod", nargs="?", default="", metavar="POD", help="a pod's name or part of it; default: all")
    logs.add_argument("-c", "--container", default="", metavar="NAME", help="engine, kvferry-sidecar or router")
    logs.add_argument("-f", "--follow", action="store_true", help="go on as lines come, until the instance ends")
    logs.add_argument("--name", default="", metavar="NAME", help="of the instance; needed when there are several")
    logs.set_defaults(func=run_logs)
    stop = _action(actions, "down", "stop an instance and remove what it left", _DOWN_EXAMPLES)
    stop.add_argument("name", nargs="?", default="", metavar="NAME", help="needed when several run")
    stop.add_argument("--grace", type=_seconds, default=150.0, metavar="S", help="then it is killed (default: 150)")
    stop.set_defaults(func=run_down)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str, examples: str
) -> argparse.ArgumentParser:
    return actions.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_up(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _action(actions, "up", "start a model's pods as processes and show them until Ctrl-C", _UP_EXAMPLES)
    parser.add_argument(
        "-f", "--filename", required=True, action="append", metavar="FILE", help="YAML or JSON; - is standard input"
    )
    parser.add_argument("--name", default="", metavar="NAME", help="another name, to run the same object twice")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--set-model", type=Path, metavar="PATH", help="serve the model in this folder instead")
    model.add_argument(
        "--model-dir",
        type=Path,
        metavar="DIR",
        help="stands for the volume at /models (default: a checkout's build/models, else ~/.cache/kvferry/models)",
    )
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help="keep logs here; else they go with the instance")
    parser.add_argument(
        "--trace", type=Path, metavar="DIR", help="write timelines of the transfers here when the pods end"
    )
    parser.set_defaults(func=run_up)


def run_up(args: argparse.Namespace) -> int:
    """
    Raises:
        InputError: the file cannot be used. SpecInvalid: the object is refused. LocalError: it cannot run here.
    """
    check_linux()
    from kvferry_operator.local import folders
    from kvferry_operator.local.request import Changes, request
    from kvferry_operator.local.up import up

    name, *more = args.filename
    if more:
        raise InputError(f"-f {name} -f {more[0]}: one `kvferry local up` runs one model; run one for each file")
    raw = documents.read_objects(name)
    if len(raw) > 1:
        raise InputError(f"{name}: holds {len(raw)} models, local mode runs one at a time: split the file")
    changes = Changes(name=args.name, model=args.set_model, models=args.model_dir, logs=args.log_dir, traces=args.trace)
    asked = request(raw[0], changes)
    folders.make("--log-dir", args.log_dir)
    folders.make("--trace", args.trace)
    asyncio.run(up(asked, sys.stdout))
    return 0


def run_ps(args: argparse.Namespace) -> int:
    del args
    check_linux()
    from kvferry_operator.local import state, table, transfers
    from kvferry_operator.local.usage import Meter

    meter = Meter()
    meter.sample()
    time.sleep(_SAMPLE_SECONDS)  # the CPU share is that of this span
    usage = meter.sample()
    folders = state.instances(_base())
    found = [(record, state.held(folder)) for folder in folders if (record := state.read_record(folder))]
    if not found:
        sys.stdout.write("nothing runs here\n")
    for record, held in found:
        if not held:
            name = f"{record.namespace}/{record.name}"
            sys.stdout.write(f"{name}  ended without cleaning up: `kvferry local down {name}` does\n")
            continue
        url = f"  {record.url}" if record.url else ""
        sys.stdout.write(f"{record.namespace}/{record.name}  pid {record.pid}{url}\n")
        if ready := table.groups(record):
            sys.stdout.write(f"  {ready}\n")
        sys.stdout.write("".join(f"  {line}\n" for line in table.pods(record, usage)))
        if sent := asyncio.run(transfers.of(record, _SHOWN_TRANSFERS)):
            sys.stdout.write("".join(f"  {line}\n" for line in table.transfers(sent)))
        sys.stdout.write(f"  logs: {record.logs}\n")
    return 0


def run_logs(args: argparse.Namespace) -> int:
    """
    Raises:
        NotRunning: no such instance, or no log of that pod and container in it.
    """
    check_linux()
    from kvferry_operator.local import logfiles, state
    from kvferry_operator.local.down import find
    from kvferry_operator.local.errors import NotRunning

    folder = find(_base(), args.name)
    record = state.read_record(folder)
    if record is None:
        raise NotRunning(f"{folder.name} is only just starting: try again")
    files = logfiles.find(Path(record.logs), args.pod, args.container)
    if not files:
        known = ", ".join(f"{file.parent.name}/{file.stem}" for file in logfiles.find(Path(record.logs), "", ""))
        raise NotRunning(f"no log of pod {args.pod or 'any'}, container {args.container or 'any'}; there are: {known}")
    tail = logfiles.Tail(files)
    while True:
        for file, line in tail.read():
            prefix = f"{file.parent.name}/{file.stem} | " if len(files) > 1 else ""
            sys.stdout.write(f"{prefix}{line}\n")
        sys.stdout.flush()
        if not args.follow or not state.held(folder):
            return 0
        time.sleep(_FOLLOW_SECONDS)  # files that grow set no event that the standard library can wait for


def run_down(args: argparse.Namespace) -> int:
    """
    Raises:
        NotRunning: no such instance, or it cannot be ended.
    """
    check_linux()
    from kvferry_operator.local.down import down, find

    folder = find(_base(), args.name)
    down(folder, lambda text: print(text, file=sys.stderr, flush=True), args.grace)  # noqa: T201
    sys.stdout.write(f"{folder.name}: stopped\n")
    return 0


def _seconds(text: str) -> float:
    """For argparse, which tells the user of a ValueError."""
    seconds = float(text)
    if not 0 <= seconds <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not within 0 to {_MAX_SECONDS} seconds")
    return seconds


def _base() -> Path:
    from kvferry_operator.local import state

    return state.root(os.environ, os.getuid())
