"""Each role in numbers, and what is wrong with it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvferry_contract.config import Role
from kvferry_operator.observation.fleet import Cohort, Fleet, JsonObject
from kvferry_operator.observation.live import condition, is_leaving
from kvferry_operator.plan.restarts import TornGroup
from kvferry_operator.status import groups
from kvferry_operator.status.pods import Outlook, Trouble, steady, trouble

ROUTER = "router"
_MAX_COUNT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class RoleState:
    """In groups; of the router, in pods.

    updated: of the revision that the object asks for. complete: ready ones among the updated. outdated: those of other
    revisions that are still there. surplus: more of the updated than wanted. trouble: None if all is as it should be.
    """

    name: str
    desired: int
    ready: int
    updated: int
    complete: int
    total: int
    outdated: int
    surplus: int
    revision: str
    trouble: Trouble | None

    @property
    def is_ready(self) -> bool:
        """Whether everything that is wanted is there, of the revision that is wanted, and serves."""
        return self.complete >= self.desired and self.trouble is None

    def entry(self) -> dict[str, Any]:
        """For `roles` in a status."""
        entry = {
            "name": self.name,
            "desired": _count(self.desired),
            "ready": _count(self.ready),
            "updated": _count(self.updated),
            "groups": {"complete": _count(self.ready), "total": _count(self.total)},
        }
        return entry | ({"revision": self.revision[:63]} if self.revision else {})


def of_groups(fleet: Fleet, role: Role, desired: int, update: str, torn: Sequence[TornGroup], model: str) -> RoleState:
    """update: the revision that the object asks for. torn: of that revision. model: name of the object."""
    cohort = fleet.cohort(role, update)
    others = [each for each in fleet.of_role(role) if each.revision != update]
    complete = cohort.ready
    return RoleState(
        name=role.value,
        desired=desired,
        ready=complete + sum(each.ready for each in others),
        updated=len(cohort.groups),
        complete=complete,
        total=len(cohort.groups) + sum(len(each.groups) for each in others),
        outdated=sum(each.occupied for each in others),
        surplus=max(0, cohort.occupied - desired),
        revision=update,
        trouble=None if complete >= desired and not torn else _of_cohort(cohort, desired, torn, model),
    )


def of_router(fleet: Fleet, desired: int) -> RoleState:
    deployment = fleet.router or {}
    status = deployment.get("status") or {}
    ready, updated, total = (int(status.get(key) or 0) for key in ("readyReplicas", "updatedReplicas", "replicas"))
    seen = int(status.get("observedGeneration") or 0) >= int((deployment.get("metadata") or {}).get("generation") or 0)
    done = ready >= desired and total <= updated and seen and bool(deployment)
    return RoleState(
        name=ROUTER,
        desired=desired,
        ready=ready,
        updated=updated,
        complete=min(ready, updated),
        total=total,
        outdated=max(0, total - updated),
        surplus=max(0, total - desired),
        revision="",
        trouble=None if done else _of_deployment(deployment, fleet.router_pods),
    )


def _of_cohort(cohort: Cohort, desired: int, torn: Sequence[TornGroup], model: str) -> Trouble:
    found = _worst(groups.troubles(cohort, desired, torn, model))
    if found is not None:
        return found
    name = cohort.workloads[0].name if cohort.workloads else ""
    if not name:
        return Trouble(12, "Starting", "its workloads are being made", Outlook.PASSES)
    message = f"pods of StatefulSet {name} are being made; if none comes, kubectl describe statefulset {name} says why"
    return Trouble(12, "Starting", message, Outlook.PASSES)


def _of_deployment(deployment: JsonObject, pods: Iterable[JsonObject]) -> Trouble:
    failure = condition(deployment, "ReplicaFailure") if deployment else {}
    if failure.get("status") == "True":
        why = steady(str(failure.get("message") or "")) or "the API server refuses its pods"
        return Trouble(0, "FailedCreate", f"no pod can be made: {why}", Outlook.NEEDS_HELP)
    found = _worst(_named(pod for pod in pods if not is_leaving(pod)))
    made = "its pods are being made" if deployment else "its Deployment is being made"
    return found or Trouble(12, "Starting", made, Outlook.PASSES)


def _worst(troubles: Iterable[groups.Named]) -> Trouble | None:
    """The most telling trouble of several pods or groups, with the name of the first one that has it."""
    found = sorted(troubles, key=lambda each: (each[0].rank, each[1]))
    if not found:
        return None
    (first, name), same = found[0], Counter(each.reason for each, _ in found)
    others = same[first.reason] - 1
    kind = name.partition(" ")[0]
    more = f" (and {others} more {kind if others == 1 else f'{kind}s'} like it)" if others else ""
    outlook = max(each.outlook for each, _ in found)
    return Trouble(first.rank, first.reason, f"{name} {first.message}{more}", outlook)


def _named(pods: Iterable[JsonObject]) -> Iterator[groups.Named]:
    for pod in pods:
        found = trouble(pod)
        if found is not None:
            yield found, f"pod {pod['metadata']['name']}"


def _count(number: int) -> int:
    return min(max(number, 0), _MAX_COUNT)
