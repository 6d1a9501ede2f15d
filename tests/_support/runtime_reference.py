"""docs/reference/metrics.md and settings.md, made from the parts themselves; run this file to write them."""

from __future__ import annotations

import ast
import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Sample

import sidecar_pods
from kvferry_contract import env
from kvferry_contract.config import Role
from kvferry_runtime.engine.reference.metrics import EngineMetrics
from kvferry_runtime.engine.reference.request import Stage
from kvferry_runtime.router.metrics import RouterMetrics

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
METRICS, SETTINGS = FOLDER / "metrics.md", FOLDER / "settings.md"
_BOOKKEEPING = ("_created", "_bucket", "_sum")
_SHOWN_VALUES = 6


async def metrics_page() -> str:
    """One table for each kind of process, every metric with its labels and their values."""
    engine = EngineMetrics()
    engine.watch(lambda: dict.fromkeys((stage.value for stage in Stage), 0), lambda: (0, 0), lambda: 0.0)
    with tempfile.TemporaryDirectory() as folder:
        async with sidecar_pods.world(Path(folder)) as world:
            sidecar = (await world.pod(Role.DECODE)).core.metrics.registry
            tables = [
                ("Sidecar, port 7401", sidecar),
                ("Engine, port 8000", engine.registry),
                ("Router, port 8080", RouterMetrics("model").registry),
            ]
            parts = [f"## {title}\n\n{table(registry)}" for title, registry in tables]
    head = (
        "# Metrics\n\nOn `/metrics` of each process. Every series is there at 0 from the start; no label holds an id.\n"
    )
    return "\n".join([head, *parts])


def settings_page() -> str:
    """The environment that the operator renders, as `kvferry_contract.env` documents it."""
    tree = ast.parse(Path(env.__file__).read_text())
    rows = ["| Variable | What it is, and who reads it |", "| --- | --- |"]
    for name, text in zip(tree.body[1:], tree.body[2:], strict=False):
        match name, text:
            case ast.Assign(value=ast.Constant(value=str(variable))), ast.Expr(value=ast.Constant(value=str(words))):
                rows.append(f"| `{variable}` | {words.replace('|', '/')} |")
    head = (
        "# Environment\n\n"
        "Rendered by the operator, and by local mode too. An engine or a router that is started by hand has flags\n"
        "for some of them, which win (`kvferry-runtime COMMAND --help`); a sidecar has only `--trace`, and needs the\n"
        "others from here. `--log-format` and `--log-level` go before the name of any command. `UCX_*` variables are\n"
        "those of UCX; what is set in `transfer.ucx` wins.\n"
    )
    return "\n".join([head, *rows]) + "\n"


def table(registry: CollectorRegistry) -> str:
    rows = ["| Metric | Kind | Labels | What it counts |", "| --- | --- | --- | --- |"]
    for metric in sorted(registry.collect(), key=lambda each: each.name):
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        rows.append(f"| `{name}` | {metric.type} | {_labels(metric)} | {metric.documentation} |")
    return "\n".join(rows) + "\n"


def _labels(metric: Metric) -> str:
    samples: Iterable[Sample] = (each for each in metric.samples if not each.name.endswith(_BOOKKEEPING))
    values: dict[str, list[str]] = {}
    for sample in samples:
        for label, value in sample.labels.items():
            known = values.setdefault(label, [])
            if value not in known:
                known.append(value)
    return "; ".join(f"{label}: {_few(each)}" for label, each in values.items())


def _few(values: list[str]) -> str:
    shown = ", ".join(f"`{value}`" for value in values[:_SHOWN_VALUES])
    return shown + (f" and {len(values) - _SHOWN_VALUES} more" if len(values) > _SHOWN_VALUES else "")


def write() -> None:
    METRICS.write_text(asyncio.run(metrics_page()))
    SETTINGS.write_text(settings_page())


if __name__ == "__main__":
    write()
