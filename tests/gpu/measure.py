"""What `tests/gpu/run` runs: every check in turn, figures for people and as JSON lines.

A check that fails is told of and does not keep the others from running; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import gpu_bytes
import gpu_case33
import gpu_engine
import gpu_gather
import gpu_overlap
import gpu_sidecars
import gpu_speed
import torch
from gpu_machine import Machine, cuda_machine, dry_machine

from kvferry_runtime.bench.figures import Figure, table

Check = Callable[[Machine], Iterator[Figure]]
CHECKS: dict[str, Check] = {
    "bytes": gpu_bytes.check,
    "speed": gpu_speed.check,
    "gather": gpu_gather.check,
    "overlap": gpu_overlap.check,
    "case33": gpu_case33.check,
    "sidecars": gpu_sidecars.check,
    "engine": gpu_engine.check,
}
BUDGET_S = 8 * 60


def main() -> int:
    options = _options()
    if not options.dry and not torch.cuda.is_available():
        print("torch finds no GPU here; --dry runs everything on a stand-in", file=sys.stderr)
        return 2
    machine = dry_machine() if options.dry else cuda_machine()
    print(f"{machine.name}, torch {torch.__version__}")
    begun, figures, failed = time.monotonic(), [], []
    for name in options.only or CHECKS:
        if time.monotonic() - begun > BUDGET_S:
            failed.append(f"{name}: not begun, {BUDGET_S} s are over")
            continue
        try:
            figures += list(CHECKS[name](machine))
        except Exception:
            failed.append(name)
            traceback.print_exc()
        print(f"{name}: done after {time.monotonic() - begun:.0f} s", flush=True)
        if options.json:
            options.json.write_text("".join(figure.line() + "\n" for figure in figures))
    print(table(figures))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    machine.close()
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/gpu/run")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on a stand-in, to try the script itself")
    parser.add_argument("--only", nargs="+", choices=CHECKS, metavar="CHECK", help=f"of {', '.join(CHECKS)}")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.json is None and os.environ.get("OUT"):
        options.json = Path(os.environ["OUT"]) / "gpu.jsonl"
    return options


if __name__ == "__main__":
    sys.exit(main())
