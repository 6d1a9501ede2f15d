"""The workloads of one role: a StatefulSet for each pipeline stage, in which an ordinal is a group."""

from __future__ import annotations

from kvferry_operator.api import defaults
from kvferry_operator.desired import config, devices, overlay, pod, sidecar
from kvferry_operator.desired.stage import Manifest, Stage, metadata
from kvferry_operator.errors import FieldError


def pod_template(stage: Stage) -> tuple[Manifest, tuple[FieldError, ...]]:
    """Engine, then sidecar, then the user's template; with what clashes."""
    config_map = config.config_map(stage)["metadata"]["name"]
    template = pod.template(stage, config_map)
    if stage.transfers:
        template = sidecar.inject(template, stage)
    guard = overlay.Guard(
        least_grace=defaults.grace_seconds(stage.spec.drain.timeout_seconds),
        device=stage.spec.rdma.resource_name if stage.uses_rdma else "",
        device_path=f"{stage.path}.rdma.count",
    )
    merged, errors = overlay.apply(template, stage.spec.template, f"{stage.path}.template", guard)
    if not merged["spec"].get("initContainers"):
        merged["spec"].pop("initContainers", None)
    return merged, errors


def typed_resource_errors(stage: Stage) -> tuple[FieldError, ...]:
    """Devices asked for twice, in `resources` and in `rdma`, or in a way that cannot be."""
    path = f"{stage.path}.resources"
    given = {"requests": stage.spec.resources.requests, "limits": stage.spec.resources.limits}
    errors = list(devices.extended_errors(devices.requirements(stage.spec.resources), path))
    if stage.uses_rdma:
        for side, amounts in given.items():
            if stage.spec.rdma.resource_name in amounts:
                message = f"goes to the sidecar alone; set its number in {stage.path}.rdma.count"
                errors.append(FieldError(f"{path}.{side}.{stage.spec.rdma.resource_name}", message))
    return tuple(errors)


def stateful_set(stage: Stage, template: Manifest, replicas: int | None) -> Manifest:
    """replicas: groups; None leaves the number to whoever scales the workload."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(stage.model, stage.name, stage.labels),
        "spec": {
            **({} if replicas is None else {"replicas": replicas}),
            "serviceName": stage.name,
            "selector": {"matchLabels": stage.selector},
            "podManagementPolicy": "Parallel",
            # a new revision is a new StatefulSet; what changes in this one is for pods that are made later anyway
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 2,
            "template": template,
        },
    }
