"""What filling and placing a chunk share: one step queued at a time, looked at when its event has passed."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvferry_contract.config import Integrity
from kvferry_runtime.agent.device.lanes import Lanes
from kvferry_runtime.agent.device.memory import DeviceKv
from kvferry_runtime.agent.device.pinned_ring import PinnedRing
from kvferry_runtime.agent.device.streams import Device, Event
from kvferry_runtime.agent.slot_work import Result, SlotWork


@dataclass(frozen=True, slots=True)
class Bench:
    """What chunks of one agent are worked on with. lanes: its side streams."""

    device: Device
    lanes: Lanes
    integrity: Integrity


class QueuedWork(SlotWork[Result]):
    """The stream is the next one whose turn it is."""

    def __init__(self, bench: Bench, ring: PinnedRing, slot: int, memory: DeviceKv) -> None:
        self._bench = bench
        self._ring = ring
        self._slot = slot
        self._memory = memory
        self._stream = bench.lanes.next()
        self._look: Callable[[], None] | None = None
        self._passed = False
        self._failure: Exception | None = None
        self._seconds = 0.0
        self._then: Callable[[], Result | None]

    def result(self) -> Result | None:
        if not self._passed:
            return None
        if self._failure is not None:
            raise self._failure
        begun = time.perf_counter()
        result = self._then()
        self._seconds += time.perf_counter() - begun
        return result

    @property
    def seconds(self) -> float:
        return self._seconds

    def when_ready(self, look: Callable[[], None]) -> None:
        self._look = look
        if self._passed:
            look()

    def _queue(self, step: Callable[[], None], then: Callable[[], Result | None]) -> Event:
        """Queue `step`; `result` goes on with `then` once the device has done it. Returns the step's event."""
        self._passed = False
        self._then = then
        holds = (self._memory.in_flight, self._ring.in_flight)
        return self._bench.lanes.queue(self._stream, step, holds, self._step_passed)

    def _step_passed(self, failure: Exception | None, seconds: float) -> None:
        """In the watch's thread."""
        self._failure = failure
        self._seconds += seconds
        self._passed = True
        if self._look is not None:
            self._look()

    def _report(self, status: torch.Tensor) -> None:
        """Inside a step: bring a status to the host."""
        self._ring.status(self._slot).copy_(status, non_blocking=True)

    def _reported(self) -> tuple[int, int]:
        """Both words of the status that came."""
        problem, wire_bytes = self._ring.status(self._slot).tolist()
        return problem, wire_bytes

    @abstractmethod
    def start(self) -> None:
        """Queue the first step."""
