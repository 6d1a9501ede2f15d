"""Which pods a set of rendered objects asks for, and in which order their containers start. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from kvferry_contract.config import Role
from kvferry_operator.api import names
from kvferry_operator.local.errors import Unsupported

Manifest = Mapping[str, Any]
"""One Kubernetes object, as its YAML reads."""

_DEFAULT_GRACE_SECONDS = 30.0


class Kind(StrEnum):
    """How the kubelet treats a container."""

    INIT = "init"
    """Runs to its end before the next one starts."""
    SIDECAR = "sidecar"
    """Starts before the next one and stays; gates it by its startup probe."""
    MAIN = "main"
    """All start together, after the others."""


class GroupKey(NamedTuple):
    """What the pods of one group have in common; each is another pipeline stage of it."""

    role: str
    revision: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    kind: Kind
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod, as the workload's controller would create it. Containers are in start order.

    host: name under which a cluster's DNS knows it, by its Service; empty where it has none.
    """

    name: str
    namespace: str
    workload: str
    ordinal: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Mapping[str, Any]
    containers: tuple[Container, ...]
    grace_seconds: float
    host: str = ""

    @property
    def role(self) -> str:
        return self.labels.get(names.LABEL_ROLE, "")

    @property
    def stage(self) -> int:
        """Pipeline stage, from 0."""
        return int(self.labels.get(names.LABEL_STAGE, "0"))

    @property
    def group(self) -> GroupKey:
        return GroupKey(self.role, self.labels.get(names.LABEL_REVISION, ""), self.ordinal)

    def container(self, name: str) -> Container:
        """
        Raises:
            KeyError: no such container.
        """
        for container in self.containers:
            if container.name == name:
                return container
        raise KeyError(name)


def pods_of(objects: Iterable[Manifest]) -> tuple[Pod, ...]:
    """The pods of all StatefulSets and Deployments, in the order of the objects.

    Other kinds need no process and are passed over, except those that would run one.

    Raises:
        Unsupported: a kind of workload that local mode does not run.
    """
    pods: list[Pod] = []
    for manifest in objects:
        kind = manifest.get("kind")
        if kind in ("StatefulSet", "Deployment"):
            first = int(manifest["spec"].get("ordinals", {}).get("start", 0))
            replicas = int(manifest["spec"].get("replicas", 1))
            pods += [_pod(manifest, ordinal) for ordinal in range(first, first + replicas)]
        elif kind in ("DaemonSet", "Job", "CronJob", "ReplicaSet", "Pod"):
            raise Unsupported(
                f"{kind} {manifest['metadata']['name']}: local mode runs StatefulSets and Deployments only"
            )
    return tuple(pods)


def stages_of(pods: Iterable[Pod]) -> dict[GroupKey, int]:
    """How many pipeline stages each group of prefill or decode has."""
    return dict(Counter(pod.group for pod in pods if pod.role in (Role.PREFILL, Role.DECODE)))


def _pod(workload: Manifest, ordinal: int) -> Pod:
    template = workload["spec"]["template"]
    metadata, spec = template.get("metadata", {}), template["spec"]
    name = f"{workload['metadata']['name']}-{ordinal}"
    service = workload["spec"].get("serviceName", "")
    claims = [
        {
            "name": claim["metadata"]["name"],
            "persistentVolumeClaim": {"claimName": f"{claim['metadata']['name']}-{name}"},
        }
        for claim in workload["spec"].get("volumeClaimTemplates", ())
    ]
    return Pod(
        name=name,
        namespace=workload["metadata"].get("namespace", "default"),
        workload=workload["metadata"]["name"],
        ordinal=ordinal,
        labels={**metadata.get("labels", {}), names.LABEL_POD_INDEX: str(ordinal)},
        annotations=dict(metadata.get("annotations", {})),
        spec={**spec, "volumes": [*spec.get("volumes", ()), *claims]},
        containers=_start_order(spec),
        grace_seconds=float(spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)),
        host=f"{name}.{service}" if service else "",
    )


def _start_order(spec: Mapping[str, Any]) -> tuple[Container, ...]:
    first = [
        Container(raw["name"], Kind.SIDECAR if raw.get("restartPolicy") == "Always" else Kind.INIT, raw)
        for raw in spec.get("initContainers", ())
    ]
    return (*first, *(Container(raw["name"], Kind.MAIN, raw) for raw in spec["containers"]))
