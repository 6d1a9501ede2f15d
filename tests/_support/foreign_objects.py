"""Objects of every kind that the operator makes, as somebody else makes them: legal, small, and without any effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvferry_operator.kube import kinds
from kvferry_operator.kube.kinds import Kind

Manifest = dict[str, Any]

_LABELS = {"app": "foreign"}
_SELECTOR = {"matchLabels": _LABELS}
_TEMPLATE = {"metadata": {"labels": _LABELS}, "spec": {"containers": [{"name": "main", "image": "foreign"}]}}

BODIES: Mapping[str, Manifest] = {
    "ServiceAccount": {},
    "Role": {"rules": []},
    "RoleBinding": {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "foreign"}},
    "ConfigMap": {"data": {"foreign": "yes"}},
    "NetworkPolicy": {"spec": {"podSelector": _SELECTOR}},
    "Service": {"spec": {"selector": _LABELS, "ports": [{"port": 81}]}},
    "PodDisruptionBudget": {"spec": {"selector": _SELECTOR, "maxUnavailable": 1}},
    "StatefulSet": {"spec": {"replicas": 0, "serviceName": "foreign", "selector": _SELECTOR, "template": _TEMPLATE}},
    "Deployment": {"spec": {"replicas": 0, "selector": _SELECTOR, "template": _TEMPLATE}},
    "Secret": {"stringData": {"foreign": "yes"}},
}
"""By kind, without metadata."""

KINDS: tuple[Kind, ...] = (*kinds.CHILDREN, kinds.SECRET)


def foreign(kind: str, name: str, metadata: Mapping[str, Any] | None = None) -> Manifest:
    """metadata: more of it, such as labels that are ours."""
    return {"metadata": {"name": name, **(metadata or {})}, **BODIES[kind]}
