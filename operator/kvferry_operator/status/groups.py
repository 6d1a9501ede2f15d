"""What is wrong with groups of pipeline stages, beyond what is wrong with each of their pods. Pure.

A group is ready when all its stages are, so that what one of them lacks shows in all: only the first cause is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kvferry_operator.api import names
from kvferry_operator.observation.fleet import Cohort, Group, JsonObject
from kvferry_operator.observation.live import place_of
from kvferry_operator.plan.lives import Phase
from kvferry_operator.plan.restarts import TornGroup
from kvferry_operator.status.pods import PROBE_NOT_PASSING, Outlook, Trouble, trouble

Named = tuple[Trouble, str]
"""A trouble, and what has it."""


def troubles(cohort: Cohort, desired: int, torn: Sequence[TornGroup], model: str) -> list[Named]:
    """Of the pods of all groups that are wanted, and of the groups. model: name of the object."""
    by_ordinal = {each.ordinal: each for each in torn}
    there = {group.ordinal: group for group in cohort.groups if group.ordinal < desired}
    found: list[Named] = []
    for ordinal in sorted(there.keys() | by_ordinal.keys()):
        of_pods = _causes([*_missing(cohort, there.get(ordinal), ordinal), *_of_pods(cohort, there.get(ordinal))])
        if ordinal in by_ordinal:
            found.append((_of_torn(by_ordinal[ordinal], cohort, of_pods, model), f"group {ordinal}"))
        else:
            found += of_pods
    return found


def _causes(found: list[Named]) -> list[Named]:
    """Without engines that wait for the stage which is the trouble."""
    telling = [each for each in found if each[0].reason != PROBE_NOT_PASSING]
    return telling or found


def _of_pods(cohort: Cohort, group: Group | None) -> Iterator[Named]:
    for pod in group.pods if group is not None else ():
        found = trouble(pod)
        if group is not None and found is not None:
            yield found, f"pod {pod['metadata']['name']}{_place(cohort, group, pod)}"


def _place(cohort: Cohort, group: Group, pod: JsonObject) -> str:
    place = place_of(pod)
    return f" (stage {place[2]} of group {group.ordinal})" if place is not None and cohort.stages > 1 else ""


def _missing(cohort: Cohort, group: Group | None, ordinal: int) -> Iterator[Named]:
    """Stages of a group without a pod, while others have one."""
    if cohort.stages == 1 or group is None:
        return
    there = {place[2] for pod in group.pods if (place := place_of(pod)) is not None}
    for stage in sorted(set(range(cohort.stages)) - there):
        names_of = [workload.name for workload in cohort.workloads if workload.stage == stage]
        why = "".join(f"; if none comes, kubectl describe statefulset {name} says why" for name in names_of)
        yield Trouble(8, "Starting", f"has no pod yet{why}", Outlook.PASSES), f"stage {stage} of group {ordinal}"


def _of_torn(torn: TornGroup, cohort: Cohort, of_pods: Iterable[Named], model: str) -> Trouble:
    if torn.phase is Phase.GOING:
        message = f"is made anew as a whole, for the {_th(torn.count)} time of at most {torn.most}: {torn.why}"
        return Trouble(6, "GroupRestarting", message, Outlook.PASSES)
    if torn.phase is Phase.TORN:
        message = f"is made anew as a whole after a pause of {torn.pause.total_seconds():g} s: {torn.why}"
        return Trouble(6, "GroupBackOff", message, Outlook.PASSES)
    return Trouble(0, "RestartsExhausted", _about_left(torn, cohort, of_pods, model), Outlook.NEEDS_HELP)


def _about_left(torn: TornGroup, cohort: Cohort, of_pods: Iterable[Named], model: str) -> str:
    chosen = names.selector(model, torn.role.value, cohort.revision) | {names.LABEL_POD_INDEX: str(torn.ordinal)}
    labels = ",".join(f"{label}={value}" for label, value in chosen.items())
    worst = min(of_pods, key=lambda each: (each[0].rank, each[1]), default=None)
    now = f"; {worst[1]} {worst[0].message}" if worst is not None else ""
    times = "once" if torn.count == 1 else f"{torn.count} times"
    before = f"was made anew {times} and broke again" if torn.count else "broke"
    return (
        f"{before}, and is left as it is by spec.{torn.role}.restart.maxRestarts: {torn.why}{now}. Mend the cause, "
        f"then begin anew with kubectl delete pod -l {labels}"
    )


def _th(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"
