"""What the cluster holds of one model, as plain data: made by `view`, read by `plan` and `status`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvferry_contract.pairs import Report
from kvferry_operator.errors import ClusterError

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """One schedulable node: what it offers, as whole numbers by extended resource (`rdma/hca`)."""

    name: str
    allocatable: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Nodes:
    """nodes: None when they could not be read; `why` then says it (no permission in a namespaced installation)."""

    nodes: tuple[NodeCapacity, ...] | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class RouterReport:
    """report: None when no router pod answered; `why` then says it for people."""

    report: Report | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """One model and everything that carries its label, read once at the beginning of a pass.

    raw: the object as the API server gave it. children: of the kinds in `kube.kinds.CHILDREN`, ours and foreign ones
    alike. pods: of all roles and revisions. nodes: None when the object asks for no device. report: None when it has
    no ready router pod yet or transfers nothing.
    """

    raw: JsonObject
    children: tuple[JsonObject, ...]
    pods: tuple[JsonObject, ...]
    nodes: Nodes | None = None
    report: RouterReport | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        metadata = self.raw["metadata"]
        return str(metadata["namespace"]), str(metadata["name"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def generation(self) -> int:
        return int(self.raw["metadata"]["generation"])

    @property
    def status(self) -> JsonObject:
        """As it was written last; empty at first."""
        return self.raw.get("status") or {}


@dataclass(frozen=True, slots=True)
class Failure:
    """One object that could not be written or removed, and why."""

    kind: str
    name: str
    error: ClusterError


@dataclass(frozen=True, slots=True)
class Results:
    """What step 4 of a pass did. conflicts: names of foreign objects in our way, as `Kind/name`."""

    applied: int = 0
    pruned: int = 0
    failures: tuple[Failure, ...] = ()
    conflicts: tuple[str, ...] = ()
