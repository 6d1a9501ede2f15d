"""The sidecar's part of a timeline: when each chunk was on the wire, and when it lay in the other side's slot."""

from __future__ import annotations

import time

from kvferry_runtime.errors import FrameError
from kvferry_runtime.sidecar.ring_slots import RingSlots
from kvferry_runtime.trace.events import Event, Phase
from kvferry_runtime.trace.recorder import Recorder
from kvferry_runtime.wire.data import DataHeader


class ChunkEvents:
    """Only made where a timeline is asked for."""

    def __init__(self, recorder: Recorder, slots: RingSlots) -> None:
        self._recorder = recorder
        self._slots = slots
        self._sending: dict[int, int] = {}
        """When each slot that is in flight was handed to the network."""

    def sending(self, slot: int) -> None:
        """Header and payload of this slot are handed to the network."""
        self._sending[slot] = time.monotonic_ns()

    def sent(self, slot: int) -> None:
        """The network is done with this slot, whose content is still there."""
        began = self._sending.pop(slot, None)
        try:
            header = DataHeader.unpack(self._slots.header(slot))
        except FrameError:
            return  # the agent is gone, and with it what it wrote: nothing to show
        if began is not None:
            self._record(Phase.SENT, header, began, time.monotonic_ns())

    def received(self, header: DataHeader) -> None:
        """A message with this header lies in a slot."""
        now = time.monotonic_ns()
        self._record(Phase.RECEIVED, header, now, now)

    def _record(self, phase: Phase, header: DataHeader, began_ns: int, ended_ns: int) -> None:
        self._recorder.add(
            Event(
                phase, header.transfer_id, header.layer, header.layer_count, header.token_start, header.token_stop,
                header.sequence, began_ns, ended_ns, header.wire_bytes,
            )
        )  # fmt: skip
