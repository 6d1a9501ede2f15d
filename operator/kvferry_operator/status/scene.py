"""Everything that conditions are found from, put together once for a pass. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from kvferry_contract.config import Role
from kvferry_contract.pairs import Report
from kvferry_operator.api.types import DisaggregatedModel, Mode
from kvferry_operator.desired.stage import roles
from kvferry_operator.errors import SpecInvalid
from kvferry_operator.observation.fleet import ROLES, Cohort, Fleet, JsonObject
from kvferry_operator.observation.observed import Observed, Results
from kvferry_operator.plan import scaling
from kvferry_operator.plan.rollout import Revisions, Step
from kvferry_operator.status.roles import RoleState, of_groups, of_router


@dataclass(frozen=True)
class Scene:
    """model: None for an object that is invalid. step: None when nothing was planned."""

    model: DisaggregatedModel | None
    invalid: SpecInvalid | None
    observed: Observed
    step: Step | None
    results: Results

    @property
    def previous(self) -> JsonObject:
        """The status as it was written last."""
        return self.observed.status

    @property
    def report(self) -> Report | None:
        return self.observed.report.report if self.observed.report else None

    @cached_property
    def fleet(self) -> Fleet:
        if self.model is None or not self.revisions.update:
            return Fleet.of(self.observed)
        pipelines = {(role, self.revisions.update): spec.parallelism.pipeline for role, spec in roles(self.model)}
        return Fleet.of(self.observed, pipelines)

    @cached_property
    def revisions(self) -> Revisions:
        """As planned; else as they were written last; else what is there."""
        if self.step is not None:
            return self.step.revisions
        there = Fleet.of(self.observed)
        written = self.previous.get("revisions") or {}
        best = max(there.revisions, key=lambda name: (_ready(there, name), name), default="")
        update = str(written.get("update") or best)
        return Revisions(current=best or update, update=update)

    @cached_property
    def wanted(self) -> Mapping[Role, int]:
        """Groups of each role; of an object that is invalid those of before."""
        if self.step is not None:
            return self.step.groups
        if self.model is not None:
            return scaling.wanted(self.model, self.fleet)
        written = {each.get("name"): each.get("desired") for each in self.previous.get("roles") or ()}
        there = {role: sum(each.declared for each in self.fleet.of_role(role)) for role in ROLES}
        return {role: int(written.get(role) or number) for role, number in there.items() if number or written.get(role)}

    @cached_property
    def groups(self) -> tuple[RoleState, ...]:
        """Of prefill and decode, as far as they are wanted or still there."""
        update = self.revisions.update
        there = [
            role for role in ROLES if role in self.wanted or any(each.occupied for each in self.fleet.of_role(role))
        ]
        torn = self.step.restarts.torn if self.step is not None else ()
        return tuple(
            of_groups(
                self.fleet,
                role,
                self.wanted.get(role, 0),
                update,
                [each for each in torn if each.role is role],
                self.observed.key[1],
            )
            for role in there
        )

    @cached_property
    def router(self) -> RoleState:
        if self.model is not None:
            desired = self.model.spec.router.replicas
        else:
            replicas = ((self.fleet.router or {}).get("spec") or {}).get("replicas")
            desired = 1 if replicas is None else int(replicas)
        return of_router(self.fleet, desired)

    @property
    def roles(self) -> tuple[RoleState, ...]:
        return (*self.groups, self.router)

    @property
    def is_aggregated(self) -> bool:
        return self.model is not None and self.model.spec.mode is Mode.AGGREGATED

    @property
    def is_empty(self) -> bool:
        """Whether the object asks for no group at all."""
        return not any(self.wanted.values())

    @property
    def is_paused(self) -> bool:
        return self.model is not None and self.model.spec.paused

    def updated(self) -> Iterator[Cohort]:
        """The groups that are wanted, role by role."""
        for role in self.wanted:
            yield self.fleet.cohort(role, self.revisions.update)

    def serving_revision(self) -> str:
        """A revision with a ready group of every role that it has; empty if there is none."""
        for name in (self.revisions.update, *self.fleet.revisions):
            cohorts = [each for each in self.fleet.cohorts if each.revision == name and each.occupied]
            if cohorts and all(each.ready for each in cohorts) and any(each.role is Role.DECODE for each in cohorts):
                return name
        return ""


def _ready(fleet: Fleet, revision: str) -> int:
    return sum(each.ready for each in fleet.cohorts if each.revision == revision)
