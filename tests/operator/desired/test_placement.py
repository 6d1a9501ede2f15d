from __future__ import annotations

from typing import Any

import pytest

import builders
import rendered
from kvferry_operator.desired.build import Groups, build
from kvferry_operator.desired.settings import Settings


def budgets(changes: dict[str, Any], groups: Groups | None = None) -> list[str]:
    objects = build(builders.model(changes), rendered.SETTINGS, groups)
    return [item["metadata"]["name"] for item in rendered.of_kind(objects, "PodDisruptionBudget")]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"decode.replicas": 2}, ["tiny-decode-budget"]),
        ({"decode.replicas": 2, "decode.disruption.budget": "None"}, []),
        ({"prefill.replicas": 3, "decode.replicas": 2}, ["tiny-prefill-budget", "tiny-decode-budget"]),
        ({"decode.scaling.mode": "External"}, ["tiny-decode-budget"]),
        ({"router.replicas": 2}, ["tiny-router-budget"]),
    ],
)
def test_a_budget_exists_where_more_than_one_group_does(changes: dict[str, Any], expected: list[str]) -> None:
    assert budgets(changes) == expected


def test_a_budget_covers_all_stages_so_that_one_group_goes_at_a_time() -> None:
    model = builders.model({"decode.replicas": 2, "decode.parallelism.pipeline": 2})
    (budget,) = rendered.of_kind(build(model, rendered.SETTINGS), "PodDisruptionBudget")
    selector = budget["spec"]["selector"]["matchLabels"].items()
    for stage in (0, 1):
        assert selector <= rendered.pod(model, "decode", stage)["metadata"]["labels"].items()
    assert not selector <= rendered.pod(model, "prefill")["metadata"]["labels"].items()
    assert budget["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("policy", "term"),
    [
        ("Preferred", "preferredDuringSchedulingIgnoredDuringExecution"),
        ("Required", "requiredDuringSchedulingIgnoredDuringExecution"),
    ],
)
def test_groups_are_kept_close_as_asked(policy: str, term: str) -> None:
    affinity = rendered.pod(builders.model({"placement": {"policy": policy, "topologyKey": "rack"}}))["spec"][
        "affinity"
    ]
    assert list(affinity["podAffinity"]) == [term]
    assert "'topologyKey': 'rack'" in str(affinity)


def preferred(changes: dict[str, Any], settings: Settings = rendered.SETTINGS) -> list[dict[str, Any]]:
    spec = rendered.pod(builders.model({"placement.policy": "Preferred", **changes}), settings=settings)["spec"]
    found: list[dict[str, Any]] = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    return found


def test_stages_of_one_group_come_before_all_other_neighbours() -> None:
    group, model = preferred({"decode.parallelism.pipeline": 2})
    assert group["weight"] > model["weight"]
    term = group["podAffinityTerm"]
    assert term["matchLabelKeys"] == ["apps.kubernetes.io/pod-index"]
    assert term["topologyKey"] == model["podAffinityTerm"]["topologyKey"]
    labels = rendered.pod(builders.model({"decode.parallelism.pipeline": 2}), stage=1)["metadata"]["labels"]
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()


def test_what_an_older_server_does_not_know_is_left_out() -> None:
    (model,) = preferred({"decode.parallelism.pipeline": 2}, Settings(images=rendered.SETTINGS.images, server=(1, 30)))
    assert model["weight"] == 100 and preferred({})[0]["weight"] == 100


def test_by_default_groups_may_run_anywhere_but_spread_over_nodes() -> None:
    spec = rendered.pod(builders.model())["spec"]
    assert "affinity" not in spec
    assert [item["whenUnsatisfiable"] for item in spec["topologySpreadConstraints"]] == ["ScheduleAnyway"]
