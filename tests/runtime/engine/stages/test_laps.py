"""A ring is complete when all links are open, whatever restarted before."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry_runtime.engine.stages.laps import Laps


class Ring:
    """Links 0 → 1 → … → 0, link s from stage s; laps under way on a link are lost with it."""

    def __init__(self, stages: int) -> None:
        self.stages = stages
        self.laps = [Laps(first=stage == 0) for stage in range(stages)]
        self.links: list[deque[int] | None] = [None] * stages
        self.ended = False

    def open(self, link: int) -> None:
        if self.links[link] is None:
            self.links[link] = deque()
            for stage in (link, (link + 1) % self.stages):
                if self.links[stage] is not None and self.links[stage - 1] is not None:
                    self._send(stage, self.laps[stage].opened())

    def lose(self, link: int) -> None:
        if self.links[link] is None:
            return
        self.links[link] = None
        near, far = self.laps[link], self.laps[(link + 1) % self.stages]
        self.ended = self.ended or near.complete or far.complete
        near.lost(incoming=False)
        far.lost(incoming=True)

    def restart(self, stage: int) -> None:
        self.lose(stage)
        self.lose(stage - 1 if stage else self.stages - 1)
        self.laps[stage] = Laps(first=stage == 0)

    def deliver(self, link: int) -> None:
        under_way = self.links[link]
        if under_way:
            stage = (link + 1) % self.stages
            self._send(stage, self.laps[stage].received(under_way.popleft()))

    def settle(self) -> None:
        for link in range(self.stages):
            self.open(link)
        while any(self.links):
            for link in range(self.stages):
                self.deliver(link)

    def _send(self, stage: int, lap: int | None) -> None:
        under_way = self.links[stage]
        if lap is not None:
            assert under_way is not None, "a lap was sent on a link that is not open"
            under_way.append(lap)


steps = st.tuples(st.sampled_from(["open", "lose", "restart", "deliver", "deliver"]), st.integers(0, 3))


@settings(max_examples=400, deadline=None)
@given(st.integers(2, 4), st.lists(steps, max_size=60))
def test_every_stage_learns_that_the_ring_is_complete_or_the_group_ends(
    stages: int, history: list[tuple[str, int]]
) -> None:
    ring = Ring(stages)
    for act, where in history:
        getattr(ring, act)(where % stages)
        if ring.ended:
            return
        if ring.laps[0].complete:
            assert all(each.complete for each in ring.laps), "the first stage is the last one to know"
    ring.settle()
    assert all(each.complete for each in ring.laps)


@given(st.integers(2, 4), st.integers(0, 3))
def test_a_ring_with_a_gap_is_not_complete(stages: int, gap: int) -> None:
    ring = Ring(stages)
    for link in range(stages):
        if link != gap % stages:
            ring.open(link)
    for _ in range(10):
        for link in range(stages):
            ring.deliver(link)
    assert not any(each.complete for each in ring.laps)
