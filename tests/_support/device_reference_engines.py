"""Reference engines whose KV lies on a device, each with its agent and the scripted sidecar of its pod."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import reference_engines as engines
from kv_settings import transfer_config
from kvferry_contract.config import Role
from kvferry_runtime.agent.device.agent import DeviceAgent
from kvferry_runtime.agent.device.streams import Device
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.kv import BLOCK_TOKENS
from reference_engines import until
from scripted_sidecar import Relay, ScriptedSidecar

CHUNKS = {"chunk_bytes": 64 * 1024}
"""What a `transfer` in `changes` must say, too."""


class Answers(NamedTuple):
    """first: of prefill, after so many seconds. rest: of decode."""

    first: engines.Completion
    rest: engines.Completion
    first_seconds: float


@dataclass
class Half:
    engine: Engine
    agent: DeviceAgent
    sidecar: ScriptedSidecar


@dataclass
class Trio:
    """alone: an engine without transfers, for what the other two must answer together."""

    alone: Engine
    prefill: Half
    decode: Half

    async def ask(self, number: int, prompt: list[int], **fields: Any) -> Answers:
        """One request to both, with one transfer between them."""
        relay = Relay(self.prefill.sidecar, self.decode.sidecar)
        relay.start()
        (first, seconds), (rest, _) = await asyncio.gather(
            _timed(self.prefill.engine, prompt, {**fields, "max_tokens": 1}, engines.transfer(number, "prefill")),
            _timed(self.decode.engine, prompt, fields, engines.transfer(number, "decode")),
        )
        await asyncio.to_thread(relay.join)
        assert relay.error is None
        return Answers(first, rest, seconds)

    async def all_free(self) -> None:
        for engine in (self.prefill.engine, self.decode.engine):
            await until(lambda engine=engine: engine.pool.free == engine.pool.total and engine.loop.idle())


async def start(
    stack: AsyncExitStack, model: Path, folder: Path, prefill: Device, decode: Device, **changes: Any
) -> Trio:
    """Three running engines, until `stack` is left. folder: for the rings. changes: of the engines' settings."""

    async def half(role: Role, device: Device) -> Half:
        ring = folder / role.value
        ring.mkdir()
        sidecar = stack.enter_context(ScriptedSidecar(ring, **CHUNKS))
        agent = DeviceAgent(ring, role, changes.get("transfer") or transfer_config(**CHUNKS), device, BLOCK_TOKENS)
        engine = await asyncio.to_thread(engines.start, model, agent, role=role, **changes)
        stack.callback(engine.close, 5)
        sidecar.attach()
        await until(lambda: agent.state().attached)
        return Half(engine, agent, sidecar)

    alone = await asyncio.to_thread(engines.start, model, **changes)
    stack.callback(alone.close, 5)
    return Trio(alone, await half(Role.PREFILL, prefill), await half(Role.DECODE, decode))


async def _timed(
    engine: Engine, prompt: list[int], fields: dict[str, Any], transfer: dict[str, Any]
) -> tuple[engines.Completion, float]:
    begun = time.perf_counter()
    answer = await engines.complete(engine, prompt, **fields, kv_transfer_params=transfer)
    return answer, time.perf_counter() - begun
