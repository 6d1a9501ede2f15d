"""The status of a model in a simulated cluster, and the conditions in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import crd_schema
import router_reports
from kvferry_contract.pairs import Report
from kvferry_operator.api.parse import parse
from kvferry_operator.errors import SpecInvalid
from kvferry_operator.observation.observed import Nodes, Observed, Results, RouterReport
from kvferry_operator.status.compute import compute
from simulated_cluster import SimulatedCluster

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
Manifest = dict[str, Any]


def observe(
    cluster: SimulatedCluster, *, report: Report | str | None = None, nodes: Nodes | None = None, status: Any = None
) -> Observed:
    """report: what the router tells, or why it does not."""
    observed = cluster.observed
    raw = {**observed.raw, "status": status or {}}
    answer = None
    if report is not None:
        answer = RouterReport(None, report) if isinstance(report, str) else RouterReport(report)
    return replace(observed, raw=raw, nodes=nodes, report=answer)


def status_of(
    cluster: SimulatedCluster,
    *,
    report: Report | str | None = None,
    nodes: Nodes | None = None,
    previous: Mapping[str, Any] | None = None,
    results: Results | None = None,
    now: datetime = NOW,
    planned: bool = True,
) -> Manifest:
    """As a pass would compute it. planned: False for one that did not plan, as when paused."""
    observed = observe(cluster, report=report, nodes=nodes, status=previous)
    try:
        model = parse(cluster.raw)
    except SpecInvalid as invalid:
        return checked(compute(None, invalid, observed, None, results or Results(), now))
    step = cluster.plan() if planned else None
    return checked(compute(model, None, observed, step, results or Results(), now))


def checked(status: Manifest) -> Manifest:
    """The same, after the CRD's schema took it whole."""
    whole = {"spec": crd_schema.defaulted({"spec": _SPEC})["spec"], "status": status}
    assert crd_schema.schema_errors(whole) == []
    return status


_SPEC = {
    "model": {"uri": "hf://a/b"},
    "engine": {"type": "reference"},
    "prefill": {"replicas": 1},
    "decode": {"replicas": 1},
}


def condition(status: Manifest, type_: str) -> Manifest:
    (found,) = (each for each in status["conditions"] if each["type"] == type_)
    return dict(found)


def told(status: Manifest, type_: str) -> tuple[str, str]:
    """Status and reason of a condition."""
    found = condition(status, type_)
    return found["status"], found["reason"]


def role(status: Manifest, name: str) -> Manifest:
    (found,) = (each for each in status["roles"] if each["name"] == name)
    return dict(found)


def kstatus(status: Manifest, generation: int = 1) -> str:
    """What generic tools read out of it, by the rules of kstatus."""
    if status.get("observedGeneration") != generation:
        return "InProgress"
    by_type = {each["type"]: each["status"] for each in status["conditions"]}
    if by_type.get("Reconciling") == "True":
        return "InProgress"
    if by_type.get("Stalled") == "True":
        return "Failed"
    return "Current" if by_type.get("Ready") == "True" else "InProgress"


def ready_cluster(manifest: Manifest) -> SimulatedCluster:
    """Installed, and with its router up."""
    cluster = SimulatedCluster(manifest)
    cluster.settle()
    cluster.start_router()
    return cluster


def ready_status(cluster: SimulatedCluster, **given: Any) -> Manifest:
    return status_of(cluster, report=router_reports.report(cluster), **given)
