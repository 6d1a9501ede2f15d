"""docs/reference/operator.md, made from the operator itself; run this file to write it."""

from __future__ import annotations

import argparse

from kvferry_operator.health import MISSED_ROUNDS, STUCK_SECONDS
from kvferry_operator.metrics import Metrics
from kvferry_operator.options import ENV_PREFIX, build_parser
from runtime_reference import FOLDER, table

PAGE = FOLDER / "operator.md"


def page() -> str:
    """Flags and variables, health, metrics."""
    metrics = Metrics()
    metrics.watch_queue(lambda: 0)
    metrics.ready(("NAMESPACE", "NAME"), True)
    parts = [
        "# Operator\n",
        "## Flags of `kvferry-operator`, and their variables\n",
        _flags(build_parser({})),
        "## Health, on the HTTP port\n",
        "`/healthz` answers 503 with the reason when the process should be started anew: its queue has not turned\n"
        f"for {STUCK_SECONDS:g} s, no list came in {MISSED_ROUNDS} resync periods, or the watches of a kind twice in\n"
        "a row did not tell what a list showed. `/readyz` answers 503 with what is missing while the operator cannot\n"
        "act, and 200 in a replica that waits for the lease.\n",
        "## Metrics, on `/metrics`\n",
        table(metrics.registry),
    ]
    return "\n".join(parts)


def _flags(parser: argparse.ArgumentParser) -> str:
    rows = ["| Flag | Variable | What it is |", "| --- | --- | --- |"]
    for action in parser._actions:
        if action.dest not in ("help", "version"):
            flags = " / ".join(f"`{flag}`" for flag in action.option_strings)
            variable = "" if action.dest == "kubeconfig" else f"`{ENV_PREFIX}{action.dest.upper()}`"
            rows.append(f"| {flags} | {variable} | {action.help} |")
    return "\n".join(rows) + "\n"


def write() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    write()
