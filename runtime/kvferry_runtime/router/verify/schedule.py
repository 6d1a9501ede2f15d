"""Which pairings are to be proven now. Pure: groups, what was found so far and the time in, pairs out.

A pairing that is new, or one of whose pods (of any stage) has started again, is due at once; one that failed, after a
pause that grows to half a minute; one that a client's request has cast doubt on, at once. Those that were proven come
round so that each group takes part once an interval, whatever the number of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvferry_contract.config import Role
from kvferry_contract.endpoints import Group
from kvferry_runtime.errors import Reason
from kvferry_runtime.router.pairing import Pair
from kvferry_runtime.router.reasons import Finding
from kvferry_runtime.router.verify.verdict import Verdict

AT_ONCE = 2
"""Canaries at a time, and never two at one group."""
MAX_PAIRS = 2048
"""Beyond, groups are still each part of some pairs, but not all combinations are tried."""
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 1.0, 30.0

Key = tuple[str, str]
"""Names of the prefill's and the decode's pod."""
Boots = Mapping[str, str]
"""What each sidecar, by its HTTP address, was started as."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one pairing.

    verdict: the last that decided, None before the first. changed_unix: since when its finding is that. told: of the
    last canary that decided nothing, empty after one that did. at: end of the last canary. tries: those in a row that
    did not verify. members, boots: of the two groups at that time. doubted: a request's KV did not arrive since.
    """

    verdict: Verdict | None
    changed_unix: float
    told: str
    at: float
    tries: int
    members: tuple[str, ...]
    boots: Boots
    doubted: bool = False

    @property
    def verified(self) -> bool:
        return self.verdict is not None and self.verdict.finding is Finding.VERIFIED

    @property
    def reason(self) -> Reason | None:
        return None if self.verdict is None else self.verdict.reason

    def news(self, before: Standing) -> bool:
        """Whether this is worth a line in the log, after `before`."""
        return (self.changed_unix, self.reason, self.told) != (before.changed_unix, before.reason, before.told)


def key_of(pair: Pair) -> Key:
    return pair.prefill.pod, pair.decode.pod


def members_of(group: Group) -> tuple[str, ...]:
    """Addresses of its engine and of the sidecar of each stage: another pod in any of its places changes them."""
    return (group.engine, *group.sidecar_http)


def pairings(groups: Iterable[Group]) -> list[Pair]:
    """The pairs that requests may take and that can be proven, in an order whose beginning has every group in it."""
    ready = [group for group in groups if group.ready and not group.terminating and group.sidecar_http]
    prefills = sorted((group for group in ready if group.role == Role.PREFILL and _told(group)), key=_place)
    decodes = sorted((group for group in ready if group.role == Role.DECODE), key=_place)
    revisions = sorted({group.revision for group in prefills} & {group.revision for group in decodes})
    pairs: list[Pair] = []
    for revision in revisions:
        pairs += _product(
            [group for group in prefills if group.revision == revision],
            [group for group in decodes if group.revision == revision],
            MAX_PAIRS // len(revisions),
        )
    return pairs


def next_canaries(
    pairs: Iterable[Pair],
    standings: Mapping[Key, Standing],
    boots: Boots,
    busy: Collection[Key],
    now: float,
    interval: float,
) -> tuple[list[Pair], float]:
    """The pairs whose canary should begin now, and the seconds until the next one is due (infinite: none is).

    Who waits longest comes first. A pair that is due, but has to wait for a canary to end, is not part of the seconds.

    boots: of the sidecars as they are now. busy: pairs with a canary under way. interval: seconds, above 0.
    """
    proven = _last_proofs(standings)
    waiting = []
    for number, pair in enumerate(pairs):
        standing = current(pair, standings, boots)
        last = -math.inf if standing is None else standing.at
        waiting.append((_due(pair, standing, proven, interval), last, number, pair))
    taken = {pod for key in busy for pod in key}
    chosen: list[Pair] = []
    for due, _, _, pair in sorted(waiting, key=lambda item: item[:3]):
        if due > now:
            return chosen, due - now
        if len(busy) + len(chosen) < AT_ONCE and taken.isdisjoint(key_of(pair)):
            chosen.append(pair)
            taken |= set(key_of(pair))
    return chosen, math.inf


def pause(tries: int) -> float:
    """Seconds after a canary that did not verify. tries: such canaries in a row, from 1."""
    return min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(tries - 1, 16))


def current(pair: Pair, standings: Mapping[Key, Standing], boots: Boots) -> Standing | None:
    """What is known of the pair, unless the engine or the sidecar of any stage is another one by now.

    boots: of the sidecars as they are now; one that is silent is taken to be the same.
    """
    standing = standings.get(key_of(pair))
    if standing is None or standing.members != _both(pair):
        return None
    restarted = any(boots[address] != boot for address, boot in standing.boots.items() if address in boots)
    return None if restarted else standing


def settled(
    before: Standing | None, verdict: Verdict, pair: Pair, boots: Boots, now: float, now_unix: float
) -> Standing:
    """What is known of a pair after another canary. One that decided nothing leaves the last finding as it is.

    boots: of both groups' sidecars, from before the canary. now: monotonic. now_unix: seconds since 1970.
    """
    known = None if before is None else before.verdict
    same = known is not None and known.finding is verdict.finding
    undecided = verdict.finding is Finding.UNDECIDED
    verified = verdict.finding is Finding.VERIFIED
    kept = before is not None and (undecided or same)
    return Standing(
        verdict=known if undecided else verdict,
        changed_unix=before.changed_unix if kept and before else now_unix,
        told=verdict.message if undecided else "",
        at=now,
        tries=0 if verified else 1 + (before.tries if before else 0),
        members=_both(pair),
        boots=boots,
    )


def _both(pair: Pair) -> tuple[str, ...]:
    return (*members_of(pair.prefill), *members_of(pair.decode))


def _due(pair: Pair, standing: Standing | None, proven: Mapping[str, float], interval: float) -> float:
    """The time at which the pair's canary should begin."""
    if standing is None:
        return -math.inf
    if not standing.verified or standing.told:
        return standing.at + pause(max(1, standing.tries))
    if standing.doubted:
        return standing.at + FIRST_PAUSE_SECONDS
    return min(proven[pod] for pod in key_of(pair)) + interval


def _last_proofs(standings: Mapping[Key, Standing]) -> dict[str, float]:
    """When each pod was last part of a pair that was found well."""
    proven: dict[str, float] = {}
    for key, standing in standings.items():
        if standing.verified:
            for pod in key:
                proven[pod] = max(proven.get(pod, -math.inf), standing.at)
    return proven


def _told(group: Group) -> bool:
    """Whether each stage's sidecar can be loaded from and asked what it sent."""
    return 0 < len(group.sidecars) == len(group.sidecar_http)


def _place(group: Group) -> tuple[str, int]:
    return group.revision, group.ordinal


def _product(prefills: Sequence[Group], decodes: Sequence[Group], limit: int) -> list[Pair]:
    """All combinations once, walked diagonally: the first max(P, D) of them have every group in them."""
    lap = math.lcm(len(prefills), len(decodes))
    count = min(len(prefills) * len(decodes), limit)
    return [
        Pair(prefills[number % len(prefills)], decodes[(number + number // lap) % len(decodes)])
        for number in range(count)
    ]
