"""Every rendered object is accepted by a real API server, which is asked with strict validation and stores nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from control_plane import ControlPlane
from helm_chart import Chart, Values, one

INSTALLATIONS = {path.stem: path for path in sorted((Path(__file__).parent / "values").glob("*.yaml"))}
APPLY = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_every_object_is_accepted(chart: Chart, control_plane: ControlPlane, name: str) -> None:
    values = yaml.safe_load(INSTALLATIONS[name].read_text())
    namespace = control_plane.namespace("chart")
    if values.get("namespaces"):
        values["namespaces"] = [namespace]
    # the kinds of the Prometheus operator are unknown here, and so left out by the chart
    objects = chart.objects(values, "--namespace", namespace)
    told = control_plane.kubectl(*APPLY, stdin=yaml.safe_dump_all(objects))
    assert len(told.splitlines()) == len(objects)


@pytest.mark.parametrize("values", [{}, {"podSecurityContext": {"runAsUser": None, "runAsGroup": None}}], ids=str)
def test_the_pods_pass_the_restricted_standard(chart: Chart, control_plane: ControlPlane, values: Values) -> None:
    namespace = control_plane.namespace("chart", {"pod-security.kubernetes.io/enforce": "restricted"})
    place = f"/api/v1/namespaces/{namespace}"
    objects = chart.objects(values, "--namespace", namespace)
    control_plane.api.create(f"{place}/serviceaccounts", one(objects, "ServiceAccount"))
    operator = one(objects, "Deployment")["spec"]["template"]
    operator["metadata"]["name"] = "operator"
    for pod in (operator, one(objects, "Pod")):
        control_plane.api.create(f"{place}/pods", pod, "?dryRun=All&fieldValidation=Strict")
