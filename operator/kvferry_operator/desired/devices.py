"""Devices: RDMA resources and networks, and the rule of Kubernetes that extended resources cannot be overcommitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvferry_operator.api import names, quantity
from kvferry_operator.api.types import Rdma, RdmaMode, Resources
from kvferry_operator.desired.stage import Manifest
from kvferry_operator.errors import FieldError


def is_extended(resource: str) -> bool:
    """A device plugin's resource: it has a domain that is not Kubernetes' own."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def requirements(resources: Resources) -> Manifest:
    """The `resources` of a container. An extended resource given on one side is set on the other too."""
    requests, limits = dict(resources.requests), dict(resources.limits)
    for resource, amount in tuple(requests.items()):
        if is_extended(resource):
            limits.setdefault(resource, amount)
    for resource, amount in tuple(limits.items()):
        if is_extended(resource):
            requests.setdefault(resource, amount)
    return {key: dict(sorted(side.items())) for key, side in (("requests", requests), ("limits", limits)) if side}


def rdma(spec: Rdma) -> Manifest:
    """RDMA devices for the container that moves data: request and limit alike, or nothing."""
    if spec.mode is not RdmaMode.DEVICE_PLUGIN:
        return {}
    devices = {spec.resource_name: str(spec.count)}
    return {"requests": dict(devices), "limits": dict(devices)}


def network_annotations(spec: Rdma) -> dict[str, str]:
    """Secondary networks for the pod, in the short form that can be joined with a user's own."""
    return {names.ANNOTATION_NETWORKS: ",".join(spec.networks)} if spec.networks else {}


def extended_errors(resources: Mapping[str, Any], path: str) -> tuple[FieldError, ...]:
    """Extended resources that the API server would refuse: fractions, or a request that is not the limit."""
    errors = []
    sides = {side: resources.get(side) for side in ("requests", "limits")}
    amounts = {side: value if isinstance(value, Mapping) else {} for side, value in sides.items()}
    for resource in sorted({name for side in amounts.values() for name in side if is_extended(str(name))}):
        for side in ("requests", "limits"):
            amount = amounts[side].get(resource)
            if amount is not None and not _is_count(amount):
                errors.append(FieldError(f"{path}.{side}.{resource}", f"must be a whole number, found {amount}"))
        request, limit = amounts["requests"].get(resource), amounts["limits"].get(resource)
        if request is not None and str(request) != str(limit):
            found = "no limit" if limit is None else f"limit {limit}"
            message = f"must equal its limit (devices cannot be overcommitted), found request {request} and {found}"
            errors.append(FieldError(f"{path}.requests.{resource}", message))
    return tuple(errors)


def _is_count(amount: object) -> bool:
    try:
        value = quantity.parse(amount)
    except quantity.QuantityError:
        return False
    return value == int(value)
