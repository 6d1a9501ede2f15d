"""The ring's memory together with who owns each slot; wakes those who wait for a free one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.slots import SlotPool, SlotState
from kvferry_runtime.wire.data import HEADER_BYTES


class RingSlots:
    """Only for the event loop's thread. `on_free` is called whenever a slot became free."""

    def __init__(self, ring: RingMemory) -> None:
        self._ring = ring
        self._pool = SlotPool(ring.slots)
        self._freed = asyncio.Event()
        self.on_free: Callable[[], None] = lambda: None

    @property
    def total(self) -> int:
        return self._ring.slots

    @property
    def free(self) -> int:
        return self._pool.free

    @property
    def chunk_bytes(self) -> int:
        return self._ring.chunk_bytes

    def counts(self) -> Mapping[SlotState, int]:
        return self._pool.counts()

    def take(self, state: SlotState) -> int | None:
        """A free slot, now posted or lent; None if there is none."""
        return self._pool.take(state)

    def move(self, slot: int, state: SlotState) -> None:
        """Raises RingError: the slot cannot go from where it is to `state`."""
        self._pool.move(slot, state)
        if state is SlotState.FREE:
            self._freed.set()
            self.on_free()

    def message(self, slot: int, payload_bytes: int) -> memoryview:
        """Header and the first `payload_bytes` of the payload."""
        return self._ring.slot_message(slot)[: HEADER_BYTES + payload_bytes]

    def header(self, slot: int) -> bytes:
        """A copy: what the peer or the agent does to the slot later does not change it."""
        return bytes(self._ring.slot_header(slot))

    async def wait_free(self) -> None:
        """Until some slot becomes free; give it a deadline."""
        while not self._pool.free:
            self._freed.clear()
            await self._freed.wait()
