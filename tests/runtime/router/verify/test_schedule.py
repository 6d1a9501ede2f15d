"""Which pairings are proven when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_contract.endpoints import Group
from kvferry_runtime.errors import Reason
from kvferry_runtime.router.pairing import Pair
from kvferry_runtime.router.reasons import Finding
from kvferry_runtime.router.verify import schedule
from kvferry_runtime.router.verify.schedule import Key, Standing, key_of, next_canaries, pairings, settled
from kvferry_runtime.router.verify.verdict import Verdict, undecided
from routed_stubs import group

INTERVAL = 30.0
VERIFIED = Verdict(Finding.VERIFIED)
FAILED = Verdict(Finding.FAILED, Reason.PEER_UNREACHABLE, "nobody there")


def made(role: str, ordinal: int, **changes: object) -> Group:
    address = f"10.0.{ordinal}.{1 if role == 'prefill' else 2}"
    return replace(group(f"{address}:8000", role, ordinal, sidecar_http=(f"{address}:7401",)), **changes)


def fleet(prefills: int, decodes: int) -> list[Group]:
    return [made("prefill", n) for n in range(prefills)] + [made("decode", n) for n in range(decodes)]


def names(pairs: list[Pair]) -> list[tuple[int, int]]:
    return [(pair.prefill.ordinal, pair.decode.ordinal) for pair in pairs]


class World:
    """Runs the schedule: every canary takes `seconds` and ends with `verdict`."""

    def __init__(self, groups: list[Group]) -> None:
        self.pairs = pairings(groups)
        self.standings: dict[Key, Standing] = {}
        self.boots: dict[str, str] = {}
        self.now = 0.0
        self.log: list[tuple[float, Pair]] = []
        self.busy: dict[Key, float] = {}

    def run(self, until: float, verdict: Verdict = VERIFIED, seconds: float = 0.1) -> list[tuple[float, Pair]]:
        begun: list[tuple[float, Pair]] = []
        by_key = {key_of(pair): pair for pair in self.pairs}
        while self.now < until:
            chosen, wait = next_canaries(self.pairs, self.standings, self.boots, self.busy.keys(), self.now, INTERVAL)
            for pair in chosen:
                begun.append((self.now, pair))
                self.busy[key_of(pair)] = self.now + seconds
            assert len(self.busy) <= schedule.AT_ONCE
            self.now = min([self.now + wait, until, *self.busy.values()])
            for key in [key for key, end in self.busy.items() if end <= self.now]:
                del self.busy[key]
                before, pair = self.standings.get(key), by_key[key]
                theirs = {*pair.prefill.sidecar_http, *pair.decode.sidecar_http}
                boots = {address: boot for address, boot in self.boots.items() if address in theirs}
                self.standings[key] = settled(before, verdict, pair, boots, self.now, self.now)
        return begun


@given(st.integers(1, 12), st.integers(1, 12))
def test_pairings_are_all_combinations_once_and_soon_have_every_group(prefills: int, decodes: int) -> None:
    pairs = names(pairings(fleet(prefills, decodes)))
    assert sorted(pairs) == [(p, d) for p in range(prefills) for d in range(decodes)]
    first = pairs[: max(prefills, decodes)]
    assert {p for p, _ in first} == set(range(prefills)) and {d for _, d in first} == set(range(decodes))


def test_only_what_requests_may_take_and_records_can_tell_is_a_pairing() -> None:
    good = fleet(1, 1)
    others = [
        made("prefill", 1, ready=False),
        made("prefill", 2, sidecars=()),
        made("prefill", 3, revision="r2"),
        made("decode", 1, terminating=True),
        made("decode", 2, revision="r3"),
        made("aggregated", 3),
        group("10.9.0.1:8000", "decode", 4),
    ]
    assert names(pairings([*good, *others])) == [(0, 0)]


def test_many_groups_are_bounded_and_each_is_in_some_pair() -> None:
    pairs = names(pairings(fleet(60, 50)))
    assert len(pairs) == schedule.MAX_PAIRS
    assert len({p for p, _ in pairs}) == 60 and len({d for _, d in pairs}) == 50


def test_a_new_pair_is_due_at_once_and_then_waits_for_the_interval() -> None:
    world = World(fleet(1, 1))
    assert [when for when, _ in world.run(65)] == pytest.approx([0.0, 30.1, 60.2])


@given(st.integers(1, 4), st.integers(1, 5))
def test_each_group_takes_part_once_an_interval_and_none_in_two_at_a_time(prefills: int, decodes: int) -> None:
    world = World(fleet(prefills, decodes))
    begun = world.run(4 * INTERVAL)
    assert len({key_of(pair) for _, pair in begun}) == prefills * decodes, "every combination was tried at first"
    for pod in {pod for _, pair in begun for pod in key_of(pair)}:
        times = [when for when, pair in begun if pod in key_of(pair)]
        assert all(later - earlier >= 0.1 - 1e-9 for earlier, later in pairwise(times))
        gaps = [later - earlier for earlier, later in zip(times, [*times[1:], 4 * INTERVAL], strict=True)]
        # besides the interval, a group may wait for canaries of others
        assert max(gaps) <= INTERVAL + 0.1 * (prefills + decodes + 1)


@given(st.integers(1, 4), st.integers(1, 5))
def test_in_the_long_run_the_number_of_canaries_follows_the_groups_and_not_the_pairs(p: int, d: int) -> None:
    world = World(fleet(p, d))
    world.run(INTERVAL)
    assert len(world.run(2 * INTERVAL)) <= p + d


def test_a_failed_pair_is_tried_again_with_growing_pauses_while_others_go_on() -> None:
    world = World(fleet(1, 1))
    times = [when for when, _ in world.run(200, FAILED, seconds=0.0)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == pytest.approx([1, 2, 4, 8, 16, 30, 30, 30, 30, 30])


def test_a_canary_that_decides_nothing_keeps_the_finding_and_is_repeated() -> None:
    world = World(fleet(1, 1))
    world.run(1)
    [before] = world.standings.values()
    world.now = before.at + INTERVAL
    world.run(world.now + 0.5, undecided("no answer"))
    [after] = world.standings.values()
    assert after.verified and after.changed_unix == before.changed_unix and after.told == "no answer"
    assert len(world.run(after.at + 1.5)) == 1
    [at_last] = world.standings.values()
    assert at_last.verified and at_last.told == "" and at_last.tries == 0


@pytest.mark.parametrize("verdict", [VERIFIED, FAILED])
def test_a_restarted_sidecar_or_engine_makes_its_pairs_due_at_once(verdict: Verdict) -> None:
    world = World(fleet(1, 2))
    world.boots = {"10.0.0.1:7401": "first", "10.0.0.2:7401": "first", "10.0.1.2:7401": "first"}
    world.run(0.9, verdict)
    world.boots["10.0.1.2:7401"] = "second"
    chosen, _ = next_canaries(world.pairs, world.standings, world.boots, (), world.now, INTERVAL)
    assert names(chosen) == [(0, 1)]
    moved = [
        Pair(pair.prefill, made("decode", 0, engine="10.7.7.7:8000")) if pair.decode.ordinal == 0 else pair
        for pair in world.pairs
    ]
    world.boots["10.0.1.2:7401"] = "first"
    chosen, _ = next_canaries(moved, world.standings, world.boots, (), world.now, INTERVAL)
    assert names(chosen) == [(0, 0)]


def test_a_sidecar_that_does_not_answer_is_not_taken_for_a_restarted_one() -> None:
    world = World(fleet(1, 1))
    world.boots = {"10.0.0.1:7401": "first", "10.0.0.2:7401": "first"}
    world.run(0.5)
    assert next_canaries(world.pairs, world.standings, {}, (), world.now, INTERVAL)[0] == []


def test_a_doubted_pair_is_due_but_not_more_than_once_a_second() -> None:
    world = World(fleet(1, 1))
    world.run(0.5)
    key, standing = next(iter(world.standings.items()))
    doubted: Mapping[Key, Standing] = {key: replace(standing, doubted=True)}
    chosen, wait = next_canaries(world.pairs, doubted, {}, (), world.now, INTERVAL)
    assert chosen == [] and 0 < wait <= schedule.FIRST_PAUSE_SECONDS
    assert len(next_canaries(world.pairs, doubted, {}, (), world.now + wait, INTERVAL)[0]) == 1


def test_without_pairs_nothing_is_due() -> None:
    assert next_canaries([], {}, {}, (), 0.0, INTERVAL) == ([], math.inf)
