"""A stage behind the first one, as its process sees it: it computes, and can tell how it is."""

from __future__ import annotations

import dataclasses
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from kvferry_runtime.agent.base import KvAgent
from kvferry_runtime.engine.reference.metrics import watch_loop
from kvferry_runtime.engine.reference.worker import StageWorker
from kvferry_runtime.engine.stages.ring import StageRing


class LaterStage:
    """The parts are made by `building`."""

    def __init__(self, worker: StageWorker, ring: StageRing, agent: KvAgent | None) -> None:
        self.worker = worker
        self.agent = agent
        self._ring = ring
        self._registry = CollectorRegistry()
        watch_loop(self._registry, worker.blocks, worker.age)

    @property
    def place(self) -> str:
        """For people."""
        return f"stage {self._ring.stage} of {self._ring.stages}"

    def state(self) -> dict[str, Any]:
        """For /v1/state."""
        total, free = self.worker.blocks()
        agent = None if self.agent is None else self.agent.state()
        return {
            "stage": self._ring.stage,
            "stages": self._ring.stages,
            "blocks": {"total": total, "free": free},
            "requests": self.worker.requests(),
            "engine_age_ms": int(self.worker.age() * 1000),
            "agent": None if agent is None else dataclasses.asdict(agent),
        }

    def exposition(self) -> bytes:
        """Metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def close(self, timeout: float) -> None:
        """End the threads and give the sidecar up; at most about `timeout` seconds each."""
        self.worker.stop(timeout)
        if self.agent is not None:
            self.agent.close(timeout)
        self._ring.close(timeout)
