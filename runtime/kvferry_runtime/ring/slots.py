"""Who owns each slot of the ring. Pure: the sidecar's own book-keeping, no memory and no socket.

On prefill a slot goes free → lent → in flight → free, on decode free → posted → lent → posted … → free. A slot that
the network may still touch although its session is over is *lost*, until the network gives it back after all.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from kvferry_runtime.errors import RingError


class SlotState(StrEnum):
    FREE = "free"
    POSTED = "posted"
    """A receive is posted in it: the network may write it."""
    LENT = "lent"
    """The agent may read and write it."""
    IN_FLIGHT = "in_flight"
    """Being sent, or sent and not yet acknowledged: it must not change."""
    LOST = "lost"
    """The transport never gave it back."""


_LEGAL: Mapping[SlotState, frozenset[SlotState]] = {
    SlotState.FREE: frozenset({SlotState.POSTED, SlotState.LENT}),
    SlotState.POSTED: frozenset({SlotState.LENT, SlotState.FREE, SlotState.LOST}),
    SlotState.LENT: frozenset({SlotState.POSTED, SlotState.IN_FLIGHT, SlotState.FREE}),
    SlotState.IN_FLIGHT: frozenset({SlotState.FREE, SlotState.LOST}),
    SlotState.LOST: frozenset({SlotState.FREE}),
}


class SlotPool:
    """States of `slots` slots. The slot freed last is taken first, since its memory is most likely still in cache."""

    def __init__(self, slots: int) -> None:
        self._states = [SlotState.FREE] * slots
        self._free = list(range(slots - 1, -1, -1))
        self._counts = dict.fromkeys(SlotState, 0) | {SlotState.FREE: slots}

    @property
    def free(self) -> int:
        """How many slots are free."""
        return len(self._free)

    def take(self, state: SlotState) -> int | None:
        """Take a free slot into `state` (posted or lent); None if there is none.

        Raises:
            RingError: a free slot cannot go into that state.
        """
        if state not in _LEGAL[SlotState.FREE]:
            raise RingError(f"a free slot cannot become {state.value}")
        if not self._free:
            return None
        slot = self._free.pop()
        self._set(slot, state)
        return slot

    def move(self, slot: int, state: SlotState) -> None:
        """Put `slot` into another state.

        Raises:
            RingError: no such slot, or no such step; nothing has changed.
        """
        found = self.state(slot)
        if found is SlotState.FREE or state not in _LEGAL[found]:
            raise RingError(f"slot {slot} is {found.value} and cannot become {state.value}")
        self._set(slot, state)
        if state is SlotState.FREE:
            self._free.append(slot)

    def state(self, slot: int) -> SlotState:
        """Raises RingError if there is no such slot."""
        if not 0 <= slot < len(self._states):
            raise RingError(f"slot {slot} is not in this ring of {len(self._states)} slots")
        return self._states[slot]

    def counts(self) -> Mapping[SlotState, int]:
        """Slots in each state; they sum up to all slots."""
        return dict(self._counts)

    def _set(self, slot: int, state: SlotState) -> None:
        self._counts[self._states[slot]] -= 1
        self._counts[state] += 1
        self._states[slot] = state
