"""How quiet a process is that has nothing to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Rest:
    """wakes: a second, of all threads. share: of the time of one core."""

    wakes: float
    share: float

    @property
    def spins(self) -> bool:
        """Whether it turns in a loop, or is woken again and again: far from what any machine makes of some wake-ups a
        second, slow and shared ones too."""
        return self.wakes > 20 or self.share > 0.5


async def rest_of(pids: Sequence[int], seconds: float) -> list[Rest]:
    """What these processes do meanwhile, one after the other in this list."""
    processes = [psutil.Process(pid) for pid in pids]
    before, began = [_used(process) for process in processes], time.monotonic()
    await asyncio.sleep(seconds)
    after, took = [_used(process) for process in processes], time.monotonic() - began
    return [
        Rest((wakes - then_wakes) / took, (cpu - then_cpu) / took)
        for (then_wakes, then_cpu), (wakes, cpu) in zip(before, after, strict=True)
    ]


def _used(process: psutil.Process) -> tuple[int, float]:
    return process.num_ctx_switches().voluntary, sum(process.cpu_times()[:2])
