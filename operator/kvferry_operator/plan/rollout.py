"""Step 3 of a pass: what to apply, to scale and to remove now. Pure; everything follows from what is observed.

Every revision has workloads of its own, one StatefulSet for each role and pipeline stage. A new revision comes up
beside the old ones (`replacement` says how fast), old ones are scaled down and removed when their last pod is gone.
Going back to a revision that still exists is the same with the names swapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from kvferry_contract.config import Role
from kvferry_operator.api import names
from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.desired.build import build
from kvferry_operator.desired.owner import owned
from kvferry_operator.desired.revision import revision
from kvferry_operator.desired.settings import Settings
from kvferry_operator.desired.stage import Manifest, roles
from kvferry_operator.kube import kinds
from kvferry_operator.observation.fleet import Cohort, Fleet
from kvferry_operator.observation.live import labels
from kvferry_operator.observation.observed import Observed
from kvferry_operator.plan import scaling
from kvferry_operator.plan.pruning import ChildRef, unwanted
from kvferry_operator.plan.replacement import Limits, OldRevision, Sizes, in_order, next_sizes
from kvferry_operator.plan.restarts import Restarts, restarts


@dataclass(frozen=True, slots=True)
class Scale:
    """A StatefulSet that gets another size and is otherwise left as it is."""

    name: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Revisions:
    """current: the one that serves. update: the one that the object asks for; the same when nothing is on its way."""

    current: str
    update: str


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now, in this order.

    hand_overs: to apply under `scaling.SCALE_MANAGER`; a conflict is no failure. objects: to apply, owned by the model;
    without those that are handed over, since applying them would take the number back. scales: of old workloads, and
    of such that an autoscaler scales out of bounds. prune: what is not wanted any more and has no pod left. restarts:
    pods of torn groups, to delete. groups: wanted of each role. waits: why a rollout cannot go on by itself, empty if
    it can. why: the whole in a few words, for logs.
    """

    hand_overs: tuple[Manifest, ...]
    objects: tuple[Manifest, ...]
    scales: tuple[Scale, ...]
    prune: tuple[ChildRef, ...]
    restarts: Restarts
    revisions: Revisions
    groups: Mapping[Role, int]
    waits: str
    why: str


def next_step(model: DisaggregatedModel, observed: Observed, settings: Settings, now: datetime) -> Step:
    """The next step towards what the object says.

    Raises:
        SpecInvalid: a template or resources that clash with what kvferry needs.
    """
    update = revision(model, settings)
    stages = {(role, update): spec.parallelism.pipeline for role, spec in roles(model)}
    fleet = Fleet.of(observed, stages)
    wanted = scaling.wanted(model, fleet)
    limits = {
        role: Limits(wanted[role], spec.rollout.max_surge, spec.rollout.max_unavailable) for role, spec in roles(model)
    }
    new = {role: fleet.cohort(role, update) for role in limits}
    old = in_order(_old(fleet, update), limits)
    sizes = next_sizes(limits, new, old)
    settled = not any(_occupied(each) for each in old) and sizes.new == wanted
    anew = restarts(dict(roles(model)), new, sizes.new, now)
    built = build(model, settings)
    sized = (_sized(model, each, fleet, sizes, wanted, settled) for each in built)
    objects = owned((_noted(each, anew.lives) for each in sized), model)
    hand_overs = tuple(_hand_overs(model, new.values(), wanted)) if settled else ()
    waiting = {each["metadata"]["name"] for each in hand_overs}
    current = next((each.revision for each in old if _occupied(each) and each.is_viable(limits)), update)
    return Step(
        hand_overs=hand_overs,
        objects=tuple(each for each in objects if not (_is_workload(each) and each["metadata"]["name"] in waiting)),
        scales=(*_old_scales(old, sizes), *(_follows(model, new.values(), wanted) if settled else ())),
        prune=tuple(unwanted(fleet, objects, update)),
        restarts=anew,
        revisions=Revisions(current, update),
        groups=wanted,
        waits=sizes.waits,
        why=_why(new, old, sizes, wanted),
    )


def _old(fleet: Fleet, update: str) -> Iterator[OldRevision]:
    for name in fleet.revisions:
        if name != update:
            yield OldRevision(name, {each.role: each for each in fleet.cohorts if each.revision == name})


def _occupied(old: OldRevision) -> bool:
    return any(cohort.occupied for cohort in old.cohorts.values())


def _sized(
    model: DisaggregatedModel,
    manifest: Manifest,
    fleet: Fleet,
    sizes: Sizes,
    wanted: Mapping[Role, int],
    settled: bool,
) -> Manifest:
    """A workload with the number that it gets now, or without one where an autoscaler has it; others as they are."""
    if not _is_workload(manifest):
        return manifest
    given = labels(manifest)
    role = Role(given[names.LABEL_ROLE])
    cohort = fleet.cohort(role, given[names.LABEL_REVISION])
    live = next((each for each in cohort.workloads if each.name == manifest["metadata"]["name"]), None)
    if settled and live is not None and scaling.handed_over(live) and scaling.is_external(dict(roles(model))[role]):
        return scaling.following(manifest)
    return scaling.leading(manifest, sizes.new[role], wanted[role])


def _noted(manifest: Manifest, lives: Mapping[Role, str]) -> Manifest:
    """The StatefulSet of a first stage with what is known of its role's groups; others as they are."""
    given = labels(manifest)
    text = lives.get(Role(given[names.LABEL_ROLE]), "") if _is_workload(manifest) else ""
    if not text or given[names.LABEL_STAGE] != "0":
        return manifest
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), names.ANNOTATION_LIVES: text}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _is_workload(manifest: Manifest) -> bool:
    return bool(manifest["kind"] == kinds.STATEFUL_SET.kind)


def _hand_overs(model: DisaggregatedModel, new: Iterable[Cohort], wanted: Mapping[Role, int]) -> Iterator[Manifest]:
    """Of workloads whose number is an autoscaler's from now on: what they have is what was wanted."""
    specs = dict(roles(model))
    for cohort in new:
        for workload in cohort.workloads:
            done = workload.replicas == wanted[cohort.role] and not scaling.handed_over(workload)
            if scaling.is_external(specs[cohort.role]) and done:
                yield scaling.hand_over(model, workload)


def _follows(model: DisaggregatedModel, new: Iterable[Cohort], wanted: Mapping[Role, int]) -> Iterator[Scale]:
    """Workloads that were handed over and are not what they should be: out of bounds, or not like the first stage."""
    specs = dict(roles(model))
    for cohort in new:
        for workload in cohort.workloads:
            handed = scaling.is_external(specs[cohort.role]) and scaling.handed_over(workload)
            if handed and workload.replicas != wanted[cohort.role]:
                yield Scale(workload.name, wanted[cohort.role])


def _old_scales(old: Iterable[OldRevision], sizes: Sizes) -> Iterator[Scale]:
    for each in old:
        for role, cohort in each.cohorts.items():
            size = sizes.old[role, each.revision]
            yield from (Scale(work.name, size) for work in cohort.workloads if work.replicas > size)


def _why(new: Mapping[Role, Cohort], old: Iterable[OldRevision], sizes: Sizes, wanted: Mapping[Role, int]) -> str:
    parts = [f"{role}: {new[role].ready} of {wanted[role]} ready, {sizes.new[role]} asked for" for role in wanted]
    left = [
        f"{each.revision} has {cohort.occupied} {role}, keeps {sizes.old[role, each.revision]}"
        for each in old
        for role, cohort in each.cohorts.items()
        if cohort.occupied
    ]
    return "; ".join([*parts, *left])
