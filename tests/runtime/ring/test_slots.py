"""No slot ever has two owners, whatever the order of events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvferry_runtime.errors import RingError
from kvferry_runtime.ring.slots import SlotPool, SlotState

SLOTS = 5
STEPS = {
    SlotState.POSTED: {SlotState.LENT, SlotState.FREE, SlotState.LOST},
    SlotState.LENT: {SlotState.POSTED, SlotState.IN_FLIGHT, SlotState.FREE},
    SlotState.IN_FLIGHT: {SlotState.FREE, SlotState.LOST},
    SlotState.LOST: {SlotState.FREE},
}


class SlotPoolMachine(RuleBasedStateMachine):
    """Against a plain dictionary of who owns what."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlotPool(SLOTS)
        self.model: dict[int, SlotState] = {}

    @rule(target=taken, state=st.sampled_from([SlotState.POSTED, SlotState.LENT]))
    def take(self, state: SlotState) -> int:
        slot = self.pool.take(state)
        if len(self.model) == SLOTS:
            assert slot is None
            return -1
        assert slot is not None and slot not in self.model
        self.model[slot] = state
        return slot

    @rule(slot=consumes(taken), state=st.sampled_from(SlotState), target=taken)
    def move(self, slot: int, state: SlotState) -> int:
        found = self.model.get(slot)
        if found is None or state not in STEPS[found]:
            with pytest.raises(RingError):
                self.pool.move(slot, state)
        else:
            self.pool.move(slot, state)
            if state is SlotState.FREE:
                del self.model[slot]
            else:
                self.model[slot] = state
        return slot

    @invariant()
    def every_slot_is_counted_once(self) -> None:
        counts = self.pool.counts()
        assert sum(counts.values()) == SLOTS
        assert counts[SlotState.FREE] == self.pool.free == SLOTS - len(self.model)
        for slot in range(SLOTS):
            assert self.pool.state(slot) is self.model.get(slot, SlotState.FREE)


TestSlotPool = SlotPoolMachine.TestCase
TestSlotPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("state", [SlotState.FREE, SlotState.IN_FLIGHT, SlotState.LOST])
def test_a_free_slot_can_only_be_posted_or_lent(state: SlotState) -> None:
    pool = SlotPool(1)
    with pytest.raises(RingError, match=f"cannot become {state.value}"):
        pool.take(state)
    assert pool.free == 1


@pytest.mark.parametrize("slot", [-1, 1])
def test_unknown_slot(slot: int) -> None:
    with pytest.raises(RingError, match="not in this ring of 1 slots"):
        SlotPool(1).move(slot, SlotState.FREE)


def test_the_slot_freed_last_is_taken_first() -> None:
    pool = SlotPool(3)
    first, second = pool.take(SlotState.LENT), pool.take(SlotState.LENT)
    assert first is not None and second is not None
    pool.move(first, SlotState.FREE)
    assert pool.take(SlotState.POSTED) == first
