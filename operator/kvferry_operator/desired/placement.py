"""Where pods may run and how many may be taken away at once."""

from __future__ import annotations

from collections.abc import Mapping

from kvferry_operator.api import names
from kvferry_operator.api.types import BudgetPolicy, DisaggregatedModel, PlacementPolicy
from kvferry_operator.desired.stage import Manifest, Stage, metadata, roles

HOSTNAME = "kubernetes.io/hostname"
_WEIGHT = 100
"""The most that Kubernetes knows."""
_MIN_FOR_BUDGET = 2
"""A budget over a single group would block every node drain."""


def affinity(stage: Stage) -> Manifest:
    """All groups of a model in one domain (rack, zone), as far as `placement` asks for it.

    Where they only should be, and do not all fit, the stages of one group should be together before all others.
    """
    placement = stage.model.spec.placement
    if placement.policy is PlacementPolicy.NONE:
        return {}
    # the router may run anywhere: it carries no KV
    roles_alone = [{"key": names.LABEL_ROLE, "operator": "In", "values": ["prefill", "decode"]}]
    of_model = {"matchLabels": {names.LABEL_MODEL: names.base(stage.model.name)}, "matchExpressions": roles_alone}
    term = {"topologyKey": placement.topology_key, "labelSelector": of_model}
    if placement.policy is PlacementPolicy.REQUIRED:
        return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    if not (stage.is_split and stage.settings.own_labels_in_affinity):
        return _preferred((_WEIGHT, term))
    of_role = {"matchLabels": names.selector(stage.model.name, stage.role.value, stage.revision)}
    group = {
        "topologyKey": placement.topology_key,
        "labelSelector": of_role,
        "matchLabelKeys": [names.LABEL_POD_INDEX],
    }
    return _preferred((_WEIGHT, group), (_WEIGHT // 2, term))


def _preferred(*terms: tuple[int, Manifest]) -> Manifest:
    weighted = [{"weight": weight, "podAffinityTerm": term} for weight, term in terms]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}


def spread(stage: Stage) -> list[Manifest]:
    """Groups of a role on different nodes where possible; each revision is counted apart."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": HOSTNAME,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {
                "matchLabels": names.selector(stage.model.name, stage.role.value, stage_index=stage.index)
            },
            "matchLabelKeys": [names.LABEL_REVISION],
        }
    ]


def budgets(model: DisaggregatedModel, counts: Mapping[str, int | None]) -> list[Manifest]:
    """One budget for each role and the router, where there is more than one to begin with.

    counts: groups for each role, None where an autoscaler decides. The budget spans all pipeline stages, so that one
    pod at a time is one group at a time.
    """
    found = [
        _budget(model, role.value)
        for role, spec in roles(model)
        if spec.disruption.budget is BudgetPolicy.AUTO and _many(counts[role.value])
    ]
    if _many(model.spec.router.replicas):
        found.append(_budget(model, "router"))
    return found


def _many(count: int | None) -> bool:
    return count is None or count >= _MIN_FOR_BUDGET


def _budget(model: DisaggregatedModel, role: str) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(model, names.budget(model.name, role), names.labels(model.name, role)),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": names.selector(model.name, role)},
            # a group that serves nobody must not keep a node from being drained
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
