"""The dashboard asks for nothing that is not measured."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import runtime_reference
from chart_reference import CHART
from helm_chart import MONITORING, Chart, one
from kvferry_operator.metrics import Metrics

DASHBOARD: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def measured() -> set[str]:
    """Every series of the operator and, from its reference page, of the runtime."""
    operator = Metrics()
    operator.watch_queue(lambda: 0)
    of_operator = {
        f"{each.name}_total" if each.type == "counter" else each.name for each in operator.registry.collect()
    }
    return of_operator | set(re.findall(r"^\| `(kvferry_\w+)`", runtime_reference.METRICS.read_text(), re.MULTILINE))


@pytest.mark.parametrize("query", QUERIES)
def test_each_metric_of_a_query_is_measured(query: str) -> None:
    asked = {name.removesuffix("_bucket") for name in re.findall(r"\bkvferry_(?!io_)\w+", query)}
    assert asked
    assert asked <= measured()


def test_labels_of_models_come_from_the_monitor(chart: Chart) -> None:
    monitor = one(chart.objects({"podMonitor": {"enabled": True}}, *MONITORING), "PodMonitor")
    # Prometheus writes what is no letter, digit or underscore as an underscore
    brought = {re.sub(r"\W", "_", re.sub(r"[./]", "_", label)) for label in monitor["spec"]["podTargetLabels"]}
    assert {label for query in QUERIES for label in re.findall(r"\bkvferry_io_\w+", query)} <= brought


def test_it_is_carried_unchanged(chart: Chart) -> None:
    """Its `{{…}}` are Grafana's, not Helm's."""
    carried = one(chart.objects({"dashboard": {"enabled": True}}), "ConfigMap")["data"]["kvferry.json"]
    assert json.loads(carried) == DASHBOARD
