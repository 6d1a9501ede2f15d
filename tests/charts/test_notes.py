"""What an installation tells its user."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from control_plane import ControlPlane
from helm_chart import Chart
from kvferry_operator.api.parse import parse


def test_the_first_model_in_the_notes_is_valid(chart: Chart, control_plane: ControlPlane) -> None:
    notes = chart.notes(control_plane.kubeconfig, {"namespaces": ["team-a"]})
    # as a shell reads it: the end of the document stands alone in its line
    document = notes.partition("kubectl -n team-a apply -f - <<EOF\n")[2].partition("\nEOF\n")[0]
    assert parse(yaml.safe_load(document)).name == "first"


def test_nothing_is_warned_of_by_default(chart: Chart, control_plane: ControlPlane) -> None:
    assert "WARNING" not in chart.notes(control_plane.kubeconfig)


_RULES = (
    "the service account kvferry-operator has the rules that "
    "`helm template charts/kvferry --kube-version 1.34.0 --show-only templates/rbac.yaml` prints"
)


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ({"crds": {"keep": False}}, "deletes every DisaggregatedModel"),
        ({"crds": {"enabled": False}}, "before each upgrade"),
        ({"replicas": 1}, "nothing is reconciled"),
        ({"rbac": {"create": False}}, _RULES),
        ({"image": {"tag": "latest"}}, "two releases"),
        ({"serviceMonitor": {"enabled": True}}, "no monitor was made"),
        ({"podSecurityContext": {"seccompProfile": None}}, "restricted"),
    ],
    ids=str,
)
def test_a_risky_value_is_warned_of(
    chart: Chart, control_plane: ControlPlane, values: dict[str, Any], warning: str
) -> None:
    warnings = [
        line for line in chart.notes(control_plane.kubeconfig, values).splitlines() if line.startswith("WARNING")
    ]
    assert len(warnings) == 1
    assert warning in warnings[0]
