"""Which groups serve a request. Pure: groups and their load in, a route out."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from kvferry_contract.config import Role
from kvferry_contract.endpoints import Group
from kvferry_runtime.router.reasons import RouteReason


@dataclass(frozen=True, slots=True)
class Load:
    """in_flight: requests at the group now. turn: number of the last request that it was given."""

    in_flight: int = 0
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """Prefill and decode of the same revision."""

    prefill: Group
    decode: Group


@dataclass(frozen=True, slots=True)
class Alone:
    """One group does it all; `reason` says why."""

    group: Group
    reason: RouteReason


@dataclass(frozen=True, slots=True)
class Nobody:
    """No group can serve the request now; `message` is for the client."""

    message: str


Route = Pair | Alone | Nobody


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted for one attempt.

    alone: do not look for a pair, for this reason. alone_allowed: without a pair, one group may do it all.
    skip: engines (`host:port`) that this request has tried already.
    """

    alone: RouteReason | None
    alone_allowed: bool
    skip: frozenset[str] = frozenset()


def choose(groups: Iterable[Group], loads: Mapping[str, Load], aside: Container[str], wish: Wish) -> Route:
    """The least loaded groups that fit; among equals the one that has waited longest.

    groups: all that discovery knows. loads: by engine address, absent means idle. aside: engines that failed a moment
    ago: never given a prefill, given a decode only when there is no other.
    """
    ready = [group for group in groups if group.ready and not group.terminating and group.engine not in wish.skip]
    decodes = _preferring(aside, [group for group in ready if group.role in (Role.DECODE, Role.AGGREGATED)])
    if not decodes:
        return Nobody("no decode group is ready")
    reason = wish.alone
    if reason is None:
        prefills = [g for g in ready if g.role == Role.PREFILL and g.sidecars and g.engine not in aside]
        pairs = [
            Pair(prefill, decode)
            for revision in {group.revision for group in prefills}
            if (prefill := _least(prefills, revision, loads)) and (decode := _least(decodes, revision, loads))
        ]
        if pairs:
            return min(pairs, key=lambda pair: _pair_order(pair, loads))
        reason = RouteReason.NO_PAIR if prefills else RouteReason.NO_PREFILL
        if not wish.alone_allowed:
            return Nobody(_NO_PAIR[reason])
    return Alone(min(decodes, key=lambda group: _order(group, loads)), reason)


_NO_PAIR = {
    RouteReason.NO_PAIR: "no prefill and decode group of the same revision are ready, and the failure policy is Fail",
    RouteReason.NO_PREFILL: "no prefill group is ready, and the failure policy is Fail",
}


def _preferring(aside: Container[str], groups: list[Group]) -> list[Group]:
    return [group for group in groups if group.engine not in aside] or groups


def _least(groups: Iterable[Group], revision: str, loads: Mapping[str, Load]) -> Group | None:
    """The least loaded group of this revision that can be half of a pair."""
    fitting = (group for group in groups if group.revision == revision and group.role != Role.AGGREGATED)
    return min(fitting, key=lambda group: _order(group, loads), default=None)


def _order(group: Group, loads: Mapping[str, Load]) -> tuple[int, int, int]:
    load = loads.get(group.engine, _IDLE)
    return load.in_flight, load.turn, group.ordinal


def _pair_order(pair: Pair, loads: Mapping[str, Load]) -> tuple[int, int]:
    both = [loads.get(group.engine, _IDLE) for group in (pair.prefill, pair.decode)]
    return sum(load.in_flight for load in both), max(load.turn for load in both)


_IDLE = Load()
