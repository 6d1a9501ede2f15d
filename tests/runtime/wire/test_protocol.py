"""The machines of both sides together, whatever the order of events and whatever goes wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry_runtime.errors import Reason
from wire_world import World

STAGES = {"one": [range(2)], "two": [range(1), range(1, 3)]}
OUT_OF_CREDITS = (Reason.DEADLINE, Reason.NO_CAPACITY)
"""So many whole messages vanished that no credit was left: then only the deadline helps."""


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES.keys())
def test_without_trouble_everything_is_committed(stages: list[range]) -> None:
    world = World(stages)
    world.finish()
    world.check_end()
    assert world.reports[0].reason is None and world.machine.first_token == 5
    assert world.now < 2, "no clock was needed"


@settings(max_examples=150, deadline=None)
@given(data=st.data(), stages=st.sampled_from(list(STAGES)))
def test_any_order_of_events_commits(data: st.DataObject, stages: str) -> None:
    world = World(STAGES[stages])
    for _ in range(60):
        steps = world.progress()
        if not steps:
            break
        data.draw(st.sampled_from(steps), label="step")[1]()
    world.finish()
    world.check_end()
    assert world.reports[0].reason is None


@settings(max_examples=300, deadline=None)
@given(data=st.data(), stages=st.sampled_from(list(STAGES)), retries=st.sampled_from([0, 1]))
def test_any_trouble_ends_in_one_outcome_and_no_slot_is_lost(data: st.DataObject, stages: str, retries: int) -> None:
    world = World(STAGES[stages], retries=retries)
    for _ in range(data.draw(st.integers(10, 80), label="length")):
        steps = world.progress()
        if data.draw(st.integers(0, 9), label="trouble") == 0 or not steps:
            steps = world.trouble()
        data.draw(st.sampled_from(steps), label="step")[1]()
        if world.over:
            break
    world.finish()
    world.check_end()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_single_damages_are_mended(data: st.DataObject) -> None:
    """Each chunk is lost or spoiled at most once."""
    world = World([range(2)])
    damaged: set[str] = set()
    for _ in range(80):
        damage = [(label, act) for label, act in world.damage() if _place(world, label) not in damaged]
        steps = world.progress()
        if damage and data.draw(st.integers(0, 3), label="damage") == 0:
            label, act = data.draw(st.sampled_from(damage), label="damage")
            damaged.add(_place(world, label))
        elif steps:
            label, act = data.draw(st.sampled_from(steps), label="step")
        else:
            label, act = "time", lambda: world.tick(2.5)
        act()
        if world.over:
            break
    world.finish()
    world.check_end()
    assert world.reports[0].reason in (None, *OUT_OF_CREDITS)


def _place(world: World, label: str) -> str:
    """The chunk that a damage hits."""
    *_, name, number = label.split()
    return f"{name} {world.sessions[name].data[int(number)].header.sequence}"
