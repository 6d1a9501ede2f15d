"""CPU and memory of each container: the sum over the processes of its session."""

from __future__ import annotations

import time
from dataclasses import dataclass

from kvferry_operator.local import proc


@dataclass(frozen=True, slots=True)
class Usage:
    """cpu: cores, since the sample before. memory_bytes: resident, shared pages included."""

    cpu: float
    memory_bytes: int


class Meter:
    """Samples all sessions at once; the CPU share is over the time since the sample before."""

    def __init__(self) -> None:
        self._cpu: dict[int, float] = {}
        self._moment = time.monotonic()

    def sample(self) -> dict[int, Usage]:
        """Session (pid of a container) to usage; the CPU of one seen for the first time reads 0."""
        now = time.monotonic()
        elapsed = max(now - self._moment, 1e-3)
        cpu: dict[int, float] = {}
        memory: dict[int, int] = {}
        for pid in proc.pids():
            found = proc.stat(pid)
            if found is not None:
                cpu[found.session] = cpu.get(found.session, 0.0) + found.cpu_seconds
                memory[found.session] = memory.get(found.session, 0) + found.memory_bytes
        usage = {
            session: Usage(max(0.0, seconds - self._cpu.get(session, seconds)) / elapsed, memory[session])
            for session, seconds in cpu.items()
        }
        self._cpu, self._moment = cpu, now
        return usage


def total(usages: list[Usage]) -> Usage:
    return Usage(sum(usage.cpu for usage in usages), sum(usage.memory_bytes for usage in usages))
