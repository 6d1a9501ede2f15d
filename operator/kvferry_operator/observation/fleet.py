"""The groups of a model as they are in the cluster: its workloads and pods, sorted by role and revision. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvferry_contract.config import Role
from kvferry_operator.api import names
from kvferry_operator.observation.live import is_broken, is_ours, is_ready, labels, ordinal_of, place_of
from kvferry_operator.observation.observed import Observed

JsonObject = Mapping[str, Any]

ROLES = (Role.PREFILL, Role.DECODE)


@dataclass(frozen=True, slots=True)
class Workload:
    """One StatefulSet of ours. created: when, as text that sorts by time. lead, lives: annotations `kvferry.io/groups`
    and `kvferry.io/lives`."""

    name: str
    uid: str
    version: str
    role: Role
    revision: str
    stage: int
    replicas: int
    created: str
    lead: str
    lives: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """One pod of every stage with the same ordinal.

    pods: those that exist, by stage. ready: every stage's is. broken: one of them waits for what will not come.
    """

    ordinal: int
    pods: tuple[JsonObject, ...]
    ready: bool
    broken: bool


@dataclass(frozen=True)
class Cohort:
    """The groups of one role at one revision. stages: pods that make a group. groups: those with any pod."""

    role: Role
    revision: str
    stages: int
    workloads: tuple[Workload, ...] = ()
    groups: tuple[Group, ...] = ()

    @cached_property
    def declared(self) -> int:
        """Groups that its workloads ask for."""
        return max((workload.replicas for workload in self.workloads), default=0)

    @cached_property
    def ready(self) -> int:
        """Declared groups that serve. Others may serve too, but are about to go."""
        return self.ready_below(self.declared)

    @cached_property
    def alive(self) -> int:
        """Declared groups that serve or may come to it by themselves."""
        return self.declared - sum(group.broken for group in self.groups if group.ordinal < self.declared)

    @cached_property
    def occupied(self) -> int:
        """Groups that hold, or will hold, devices: declared ones, and those whose pods are still leaving."""
        return self.declared + sum(group.ordinal >= self.declared for group in self.groups)

    def ready_below(self, ordinal: int) -> int:
        return sum(group.ready for group in self.groups if group.ordinal < ordinal)

    def broken_below(self, ordinal: int) -> int:
        return sum(group.broken for group in self.groups if group.ordinal < ordinal)

    def size_for(self, needed: int) -> int:
        """The least size that keeps `needed` ready groups, or all that are ready and as many that may become so.

        A StatefulSet shrinks from its highest ordinal, so broken groups below stay and count for nothing.
        """
        ready = sorted(group.ordinal for group in self.groups if group.ready and group.ordinal < self.declared)
        for_ready = ready[min(needed, len(ready)) - 1] + 1 if needed > 0 and ready else 0
        for_alive = min(max(0, needed), self.alive)
        if for_alive:
            for ordinal in sorted(group.ordinal for group in self.groups if group.broken):
                for_alive += ordinal < for_alive
        return min(max(for_ready, for_alive), self.declared)


@dataclass(frozen=True)
class Fleet:
    """children: ours alone. cohorts: of all revisions that have a workload or a pod."""

    children: tuple[JsonObject, ...]
    pods: tuple[JsonObject, ...]
    cohorts: tuple[Cohort, ...]

    @classmethod
    def of(cls, observed: Observed, stages: Mapping[tuple[Role, str], int] | None = None) -> Fleet:
        """stages: of the cohorts where it is known better than from what is there already."""
        children = tuple(child for child in observed.children if is_ours(child, observed.raw))
        return cls(children, observed.pods, tuple(_cohorts(children, observed.pods, stages or {})))

    @cached_property
    def revisions(self) -> tuple[str, ...]:
        return tuple(sorted({cohort.revision for cohort in self.cohorts}))

    @cached_property
    def router_pods(self) -> tuple[JsonObject, ...]:
        return tuple(pod for pod in self.pods if labels(pod).get(names.LABEL_ROLE) == "router")

    @cached_property
    def router(self) -> JsonObject | None:
        """The router's Deployment."""
        return next((child for child in self.children if child.get("kind") == "Deployment"), None)

    def cohort(self, role: Role, revision: str) -> Cohort:
        """Empty when nothing of it is there."""
        found = (each for each in self.cohorts if each.role is role and each.revision == revision)
        return next(found, Cohort(role, revision, 1))

    def of_role(self, role: Role) -> tuple[Cohort, ...]:
        return tuple(cohort for cohort in self.cohorts if cohort.role is role)


def _cohorts(
    children: Iterable[JsonObject], pods: Iterable[JsonObject], known: Mapping[tuple[Role, str], int]
) -> Iterator[Cohort]:
    stages: dict[tuple[Role, str], int] = {}
    workloads: dict[tuple[Role, str], list[Workload]] = {}
    members: dict[tuple[Role, str], dict[int, dict[int, JsonObject]]] = {}
    for child in children:
        place = place_of(child)
        if place is None:
            continue
        role, revision, stage = place
        stages[role, revision] = max(stages.get((role, revision), 1), stage + 1)
        if child.get("kind") == "StatefulSet":
            workloads.setdefault((role, revision), []).append(_workload(child, *place))
    for pod in pods:
        place, ordinal = place_of(pod), ordinal_of(pod)
        if place is None or ordinal is None:
            continue
        role, revision, stage = place
        stages[role, revision] = max(stages.get((role, revision), 1), stage + 1)
        members.setdefault((role, revision), {}).setdefault(ordinal, {})[stage] = pod
    for key in sorted(workloads.keys() | members.keys()):
        needed = known.get(key, stages[key])
        groups = tuple(_group(ordinal, found, needed) for ordinal, found in sorted(members.get(key, {}).items()))
        yield Cohort(*key, needed, tuple(sorted(workloads.get(key, ()), key=lambda each: each.stage)), groups)


def _workload(child: JsonObject, role: Role, revision: str, stage: int) -> Workload:
    metadata = child["metadata"]
    annotations = metadata.get("annotations") or {}
    replicas = (child.get("spec") or {}).get("replicas")
    return Workload(
        name=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        version=str(metadata.get("resourceVersion", "")),
        role=role,
        revision=revision,
        stage=stage,
        replicas=1 if replicas is None else int(replicas),
        created=str(metadata.get("creationTimestamp") or ""),
        lead=str(annotations.get(names.ANNOTATION_GROUPS, "")),
        lives=str(annotations.get(names.ANNOTATION_LIVES, "")),
    )


def _group(ordinal: int, pods: Mapping[int, JsonObject], stages: int) -> Group:
    found = tuple(pods[stage] for stage in sorted(pods))
    return Group(
        ordinal=ordinal,
        pods=found,
        ready=sum(stage < stages and is_ready(pod) for stage, pod in pods.items()) == stages,
        broken=any(map(is_broken, found)),
    )
