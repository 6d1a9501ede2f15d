"""Rings of pipeline stages on a transport in memory, all in one event loop, each stage with a scripted engine."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from eventually import eventually_async
from kvferry_runtime.engine.stages.messages import AnyMessage, Pass, Result
from kvferry_runtime.engine.stages.node import RingNode
from kvferry_runtime.engine.stages.ring import Activation, Array
from kvferry_runtime.engine.stages.settings import RingSettings
from kvferry_runtime.transport.base import Transport
from kvferry_runtime.transport.memory import MemoryNetwork

KEY = b"0123456789abcdef"
ACTIVATION_BYTES = 1 << 16
SECONDS = 60.0


def settings(stages: int, stage: int, **changes: Any) -> RingSettings:
    hosts = tuple(f"stage-{each}" for each in range(stages))
    plain = RingSettings(stage, hosts, "ns/m/r/prefill/0", hosts[stage], KEY, SECONDS)
    return dataclasses.replace(plain, **changes)


async def lookup(host: str) -> Sequence[str]:
    """Names are addresses here."""
    return [host]


class ScriptedStage:
    """Adds one to each value of an activation and sends it on; the last stage answers with the first value."""

    def __init__(self, node: RingNode, stage: int, stages: int) -> None:
        self.node = node
        self.stage = stage
        self._last = stage == stages - 1
        self.heard: list[tuple[AnyMessage, Array | None]] = []
        self.lost: list[str] = []
        self.held: list[Activation] = []
        self.holds = False

    def start(self) -> None:
        self.node.start(self._on_message, self.lost.append)

    def numbers(self) -> list[int]:
        """Of the results that came to this stage."""
        return [message.number for message, _ in self.heard if isinstance(message, Result)]

    def _on_message(self, message: AnyMessage, activation: Activation | None) -> None:
        self.heard.append((message, None if activation is None else activation.array.copy()))
        if activation is None:
            return
        assert isinstance(message, Pass)
        if self._last:
            self.node.send(Result(message.number, [int(activation.array.flat[0])]), None)
        else:
            self.node.send(message, activation.array + 1)
        if self.holds:
            self.held.append(activation)
        else:
            activation.release()


def node(network: MemoryNetwork, each: RingSettings, **changes: Any) -> RingNode:
    """One stage of a ring on this network."""
    parts: dict[str, Any] = {"marks": {}, "transport": network.transport()} | changes
    marks: Mapping[str, str] = parts["marks"]
    return RingNode(each, marks, ACTIVATION_BYTES, parts["transport"], lookup)


@asynccontextmanager
async def ring_of(
    stages: int, wrap: Callable[[int, Transport], Transport] = lambda stage, transport: transport
) -> AsyncIterator[list[ScriptedStage]]:
    """All stages of a group, joined and started."""
    network = MemoryNetwork()
    scripted = []
    for stage in range(stages):
        transport = wrap(stage, network.transport())
        scripted.append(ScriptedStage(node(network, settings(stages, stage), transport=transport), stage, stages))
    try:
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            for each in scripted:
                group.create_task(each.node.join())
        for each in scripted:
            each.start()
        yield scripted
    finally:
        for each in scripted:
            await each.node.close(SECONDS)


def activation(number: int) -> Array:
    """Whose first value is `number`."""
    return np.arange(number, number + 24, dtype=np.float32).reshape(2, 12)


async def until(look: Callable[[], object], what: str) -> None:
    """Let the loop turn until `look` is true."""

    async def ask() -> object:
        return look()

    await eventually_async(ask, what, SECONDS)
