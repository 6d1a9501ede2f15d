"""Reference engines whose model is split over several stages, all in this process, over the ring's loopback."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import reference_engines as engines
from kvferry_contract.split import Split
from kvferry_runtime.agent.base import KvAgent
from kvferry_runtime.agent.loopback import Loopback, LoopbackAgent
from kvferry_runtime.engine.reference.building import build_engine, build_later_stage
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.later_stage import LaterStage
from kvferry_runtime.engine.reference.settings import EngineSettings
from kvferry_runtime.engine.stages.loopback import LoopbackGroup
from kvferry_runtime.engine.stages.settings import RingSettings
from kvferry_runtime.transport.base import Transport

CLOSE_SECONDS = 20.0
ACTIVATION_BYTES = 512 * 96 * 4
"""The largest one of the tiny model."""


class Group:
    """A running group, or one engine where there is one stage.

    ended: stages whose loop has ended. leaving: those that said they were told to end.
    """

    def __init__(
        self,
        folder: Path,
        split: Split,
        agents: Sequence[KvAgent | None] = (),
        wrap: Callable[[int, Transport], Transport] = lambda stage, transport: transport,
        activation_bytes: int = ACTIVATION_BYTES,
        **changes: Any,
    ) -> None:
        self.ended: set[int] = set()
        self.leaving: list[int] = []
        self.agents = list(agents) or [None] * split.stages
        base = dataclasses.replace(engines.SETTINGS, split=split, **changes)
        self.later: list[LaterStage] = []
        self._ring: LoopbackGroup | None = None
        if split.stages == 1:
            self.engine: Engine = build_engine(folder, base, self.agents[0], self._over(0))
            return
        self._ring = LoopbackGroup(split.stages, activation_bytes, wrap)
        self.later = [
            build_later_stage(
                folder, stage_settings(base, stage), self.agents[stage], self._over(stage), self._join(stage)
            )
            for stage in range(1, split.stages)
        ]
        self.engine = build_engine(
            folder, stage_settings(base, 0), self.agents[0], self._over(0), self._join(0), self.leaving.append
        )

    @property
    def free(self) -> bool:
        """Whether no stage holds a block, and nothing is open."""
        pools = [(self.engine.pool.total, self.engine.pool.free), *(stage.worker.blocks() for stage in self.later)]
        return self.engine.loop.idle() and all(total == free for total, free in pools)

    def close(self) -> None:
        self.engine.close(CLOSE_SECONDS)
        for stage in self.later:
            stage.close(CLOSE_SECONDS)
        if self._ring is not None:
            self._ring.close()

    @property
    def ring(self) -> LoopbackGroup:
        assert self._ring is not None, "one stage has no ring"
        return self._ring

    def _over(self, stage: int) -> Callable[[], None]:
        return lambda: self.ended.add(stage)

    def _join(self, stage: int) -> Callable[..., Any]:
        return lambda *_: self.ring.rings[stage]


def loopback_agents(fabric: Loopback, split: Split, **options: Any) -> list[KvAgent | None]:
    """An agent for each stage."""
    return [LoopbackAgent(fabric, **options) for _ in range(split.stages)]


def stage_settings(base: EngineSettings, stage: int) -> EngineSettings:
    """Of one stage of a group."""
    hosts = tuple(f"stage-{number}" for number in range(base.split.stages))
    return dataclasses.replace(base, ring=RingSettings(stage, hosts, "loopback", hosts[stage], bytes(32), 10.0))
