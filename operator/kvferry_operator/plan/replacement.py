"""How far a new revision may replace old ones in one step: numbers of groups in, numbers of groups out. Pure.

A request needs a prefill and a decode group of one revision, so a revision is replaced as a whole. Within the limits
of each role (never above `wanted + surge` groups that exist, never below `wanted - unavailable` that serve) three
more things hold:

* Groups serve only where their revision has a ready group of every role. Until the new one has, old groups are all
  that serves, and a pair of them stays; while any role still needs an old revision, the other keeps a group of it.
* A role's new groups run ahead of the slowest role's ready ones by no more than its lead, so that a half that fails
  to come up stops the other. A role that only waits for the other to let go of the old revision holds nobody up.
* A single group that may not surge is replaced in place, but only once the other role has a new group ready.
* Old revisions that serve only together can fill a role up with a group of each. Then the new revision never gets its
  first one, so the lesser of them go, as a whole, once the new one has all other roles ready. As with a Deployment it
  is the number that serves which gives way and not the surge, for which the cluster may have no room.

What is broken counts for nothing and goes first. Where nothing serves there is nothing to protect, and everything
comes up at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvferry_contract.config import Role
from kvferry_operator.observation.fleet import Cohort

Place = tuple[Role, str]


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one role, in groups. surge, unavailable: above and below `wanted`, not both zero."""

    wanted: int
    surge: int
    unavailable: int

    @property
    def most(self) -> int:
        return self.wanted + self.surge

    @property
    def least(self) -> int:
        return max(0, self.wanted - self.unavailable)

    @property
    def lead(self) -> int:
        return max(self.surge, self.unavailable)

    @property
    def in_place(self) -> bool:
        """Whether the old group must go before the new one can come."""
        return self.wanted == self.most == 1


@dataclass(frozen=True, slots=True)
class OldRevision:
    """cohorts: of every role that it has."""

    revision: str
    cohorts: Mapping[Role, Cohort]

    def required(self, limits: Mapping[Role, Limits]) -> list[Role]:
        """Roles without which it serves nobody: all but those of which no group is wanted now."""
        return [role for role in self.cohorts if role not in limits or limits[role].wanted > 0]

    def is_viable(self, limits: Mapping[Role, Limits]) -> bool:
        """Whether it serves, or may come to it by itself."""
        required = self.required(limits)
        return bool(required) and all(self.cohorts[role].alive > 0 for role in required)


@dataclass(frozen=True, slots=True)
class Sizes:
    """new: of the new revision's workloads. old: of the old ones'; never above what they are. waits: what for."""

    new: Mapping[Role, int]
    old: Mapping[Place, int]
    waits: str = ""


def next_sizes(limits: Mapping[Role, Limits], new: Mapping[Role, Cohort], old: Sequence[OldRevision]) -> Sizes:
    """limits, new: of each role that the object has. old: all other revisions, with their last pods."""
    return _Exchange(limits, new, in_order(old, limits)).sizes()


def in_order(old: Iterable[OldRevision], limits: Mapping[Role, Limits]) -> list[OldRevision]:
    """Those that serve best first: they are kept longest."""

    def rank(each: OldRevision) -> tuple[bool, bool, int, str]:
        ready = [each.cohorts[role].ready for role in each.required(limits)]
        return not each.is_viable(limits), not (ready and all(ready)), -sum(ready), each.revision

    return sorted(old, key=rank)


@dataclass
class _Exchange:
    """One step's calculation."""

    limits: Mapping[Role, Limits]
    new: Mapping[Role, Cohort]
    old: Sequence[OldRevision]
    kept: dict[Place, int] = field(default_factory=dict)

    def sizes(self) -> Sizes:
        for revision in self.old:
            self.kept |= {(role, revision.revision): 0 for role in revision.cohorts}
        viable = [revision for revision in self.old if revision.is_viable(self.limits)]
        needs = {role: self._needed(role) for role in self.limits}
        for revision in viable:
            self._keep(revision, needs)
            self._keep_partners(revision)
        if not self._serves():
            for revision in self.old:
                if revision not in viable:
                    self._keep(revision, needs)
        stuck = [role for role in self.limits if not self._make_room(role)]
        for role in self.limits:
            self._part_with_surplus(role, viable)
        new = {role: self._grown(role, bool(viable)) for role in self.limits}
        return Sizes(new, dict(self.kept), _explain(stuck))

    def _serves(self) -> bool:
        """Whether the new revision does, of itself."""
        return all(self.new[role].ready > 0 for role in self._asked())

    def _asked(self) -> list[Role]:
        return [role for role, limit in self.limits.items() if limit.wanted > 0]

    def _needed(self, role: Role) -> int:
        """Old groups of the role that must go on serving."""
        limit = self.limits[role]
        if self._serves():
            return max(0, limit.least - self.new[role].ready)
        return max(limit.least, 1 if limit.most > 1 and limit.wanted > 0 else 0)

    def _keep(self, revision: OldRevision, needs: dict[Role, int]) -> None:
        for role, cohort in revision.cohorts.items():
            size = cohort.size_for(needs.get(role, 0))
            self.kept[role, revision.revision] = size
            if role in needs:
                needs[role] = max(0, needs[role] - cohort.ready_below(size))

    def _keep_partners(self, revision: OldRevision) -> None:
        """A kept group needs one of every other role, or all of a role that the object does not have any more."""
        places = {role: (role, revision.revision) for role in revision.cohorts}
        in_place = [role for role in self._asked() if self.limits[role].in_place]
        needed = any(self.kept[place] for role, place in places.items())
        # one group in place is enough: the best revision's, which comes first
        held = [
            role
            for role in in_place
            if role in places
            and self._kept_of(role) == self.kept[places[role]]
            and not self._serves()
            and not self._others_came(role)
        ]
        if not needed and not held:
            return
        for role in revision.required(self.limits):
            cohort, place = revision.cohorts[role], places[role]
            if role not in self.limits:
                self.kept[place] = cohort.declared
            elif role not in in_place or self._serves() or role in held:
                self.kept[place] = max(self.kept[place], cohort.size_for(1))

    def _others_came(self, role: Role) -> bool:
        """Whether every role that can have a new group beside its old ones has one that is ready."""
        others = (other for other in self._asked() if other is not role and not self.limits[other].in_place)
        return all(self.new[other].ready > 0 for other in others)

    def _make_room(self, role: Role) -> bool:
        """Broken groups at low ordinals keep healthy ones above them, which can fill the role up to its limit for
        ever. Then one more healthy group goes, unless it is the last that serves and must. False if so."""
        limit, new = self.limits[role], self.new[role]
        over = self._kept_of(role) + new.declared + 1 - limit.most
        if over <= 0 or new.declared >= limit.wanted or new.ready < new.declared:
            return True
        for revision in reversed(self.old):
            cohort, place = revision.cohorts.get(role), (role, revision.revision)
            if cohort is None or not cohort.broken_below(self.kept[place]):
                continue
            size = max(0, self.kept[place] - over)
            if cohort.ready_below(size) == 0 and cohort.ready and limit.least and not self._serves():
                return False
            self.kept[place] = size
            return True
        return True

    def _part_with_surplus(self, role: Role, viable: Sequence[OldRevision]) -> None:
        """Give up old revisions, the least one first and never the best, while all that they keep fills the role up.

        Not while any of it may still come up by itself: that is kept in place of others, which then leave room."""
        if self.new[role].declared or self.limits[role].wanted == 0 or not self._others_came(role):
            return
        if any(self._is_coming(role, revision) for revision in viable):
            return
        for revision in reversed(viable[1:]):
            if self._kept_of(role) < self.limits[role].most:
                return
            self.kept |= {(each, revision.revision): 0 for each in revision.cohorts}

    def _is_coming(self, role: Role, revision: OldRevision) -> bool:
        """Whether a kept group of it is neither ready nor broken."""
        cohort, size = revision.cohorts.get(role), self.kept.get((role, revision.revision), 0)
        return cohort is not None and cohort.ready_below(size) + cohort.broken_below(size) < size

    def _grown(self, role: Role, guarded: bool) -> int:
        """New groups of the role. guarded: an old revision serves meanwhile."""
        limit, new = self.limits[role], self.new[role]
        have = min(new.declared, limit.wanted)
        there = [revision.cohorts[role] for revision in self.old if role in revision.cohorts]
        if not any(cohort.occupied for revision in self.old for cohort in revision.cohorts.values()):
            return limit.wanted
        room = limit.most - sum(cohort.occupied for cohort in there) - max(new.occupied, have)
        allowed = min(limit.wanted, self._allowed(role)) if guarded else limit.wanted
        return max(have, min(have + max(0, room), allowed))

    def _allowed(self, role: Role) -> int:
        """New groups of the role that the others' progress allows."""
        limit = self.limits[role]
        shares = [
            self.new[other].ready * limit.wanted // self.limits[other].wanted
            for other in self._asked()
            if other is not role and not self._is_held(other)
        ]
        return min(shares, default=limit.wanted) + limit.lead

    def _is_held(self, role: Role) -> bool:
        """Whether all its new groups are ready, and the next ones wait for the old revision to be given up."""
        new = self.new[role]
        return 0 < new.declared <= new.ready and self._kept_of(role) + new.declared >= self.limits[role].most

    def _kept_of(self, role: Role) -> int:
        return sum(size for (other, _), size in self.kept.items() if other is role)


def _explain(stuck: Sequence[Role]) -> str:
    if not stuck:
        return ""
    fields = " and ".join(f"spec.{role}.rollout" for role in stuck)
    return (
        f"old groups are broken and leave no room for new ones: raise maxSurge in {fields}, or maxUnavailable to the "
        "number of groups to let the last ready one go"
    )
