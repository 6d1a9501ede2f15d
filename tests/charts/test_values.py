"""Values: documented, checked, and safe to leave out."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import chart_reference
from chart_reference import CHART
from helm_chart import Chart, RenderFailed

AGAIN = "run: python tests/_support/chart_reference.py"
DOCUMENTED = {value.path: value for value in chart_reference.documented()}
BLOCKS = sorted({path.partition(".")[0] for path in DOCUMENTED})


def test_everything_that_is_made_is_fresh() -> None:
    assert chart_reference.PAGE.read_text() == chart_reference.page(), AGAIN
    assert chart_reference.DEFAULTS.read_text() == chart_reference.defaults(), AGAIN
    assert chart_reference.CRD_COPY.read_bytes() == chart_reference.crd_schema.CRD_FILE.read_bytes(), AGAIN


@pytest.mark.parametrize("path", DOCUMENTED)
def test_value_is_documented(path: str) -> None:
    assert DOCUMENTED[path].text, f"{path} has no comment `# -- …` above it in values.yaml"


def test_schema_and_values_have_the_same_keys() -> None:
    assert sorted(_leaves(chart_reference.schema())) == sorted([*DOCUMENTED, "global"])


def _leaves(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Values as the schema knows them; a block that the chart hands on as a whole counts as one."""
    for key, child in node["properties"].items():
        inner = chart_reference.resolved(child)
        if "properties" in inner and f"{prefix}{key}" not in DOCUMENTED:
            yield from _leaves(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _closed(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every level at which a misspelt key must be refused."""
    if "properties" in node:
        yield path
        for key, child in node["properties"].items():
            yield from _closed(chart_reference.resolved(child), (*path, key))


CLOSED = list(_closed(chart_reference.schema()))


@pytest.mark.parametrize("path", CLOSED, ids=[".".join(path) or "top" for path in CLOSED])
def test_a_typo_is_refused(chart: Chart, path: tuple[str, ...]) -> None:
    values: Any = {"typo": True}
    for key in reversed(path):
        values = {key: values}
    with pytest.raises(RenderFailed, match="typo"):
        chart.text(values)


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 0},
        {"replicas": "two"},
        {"image": {"digest": "latest"}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"imagePullSecrets": ["name"]},
        {"operator": {"logLevel": "loud"}},
        {"operator": {"workers": 0}},
        {"extraEnv": [{"value": "no name"}]},
        {"namespaces": ["Upper"]},
        {"namespaces": ["twice", "twice"]},
        {"fullnameOverride": "a" * 41},
        {"podLabels": {"a": 1}},
        {"serviceMonitor": {"interval": "often"}},
        {"crds": {"keep": "yes"}},
    ],
    ids=str,
)
def test_a_value_that_cannot_work_is_refused(chart: Chart, values: dict[str, Any]) -> None:
    with pytest.raises(RenderFailed, match="values don't meet the specifications"):
        chart.text(values)


@pytest.fixture(scope="module")
def defaults(chart: Chart) -> str:
    """What is rendered with the chart's own values."""
    return chart.text()


@pytest.fixture(scope="module")
def bare_chart(chart: Chart, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    """The chart without values of its own: what is not given is absent, as with the values of an older release."""
    copied = tmp_path_factory.mktemp("charts") / "kvferry"
    shutil.copytree(CHART, copied)
    (copied / "values.yaml").write_text("{}\n")
    return Chart(chart.helm, copied)


def test_a_parent_chart_may_hand_down_global_values(chart: Chart, defaults: str) -> None:
    assert chart.text({"global": {"region": "north"}}) == defaults


@pytest.mark.parametrize("block", BLOCKS)
def test_null_means_the_default(chart: Chart, defaults: str, block: str) -> None:
    """Case 20."""
    assert chart.text({block: None}) == defaults


def test_null_inside_a_block_means_the_default(chart: Chart, defaults: str) -> None:
    """Case 20."""
    values: dict[str, dict[str, None]] = {}
    for block, _, key in (path.partition(".") for path in DOCUMENTED if "." in path):
        values.setdefault(block, {})[key] = None
    assert chart.text(values) == defaults


@pytest.mark.parametrize("block", BLOCKS)
def test_values_of_a_release_that_did_not_know_a_block(bare_chart: Chart, defaults: str, block: str) -> None:
    """Case 20: `helm upgrade --reuse-values` brings the old values, and nothing of what is new."""
    older = copy.deepcopy(chart_reference.values())
    del older[block]
    assert bare_chart.text(older) == defaults


def test_no_value_at_all_renders_the_defaults(bare_chart: Chart, defaults: str) -> None:
    """Case 20."""
    assert bare_chart.text() == defaults
