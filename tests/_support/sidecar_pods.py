"""Sidecars with scripted agents, in one process, on a network in memory (or another transport)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kv_settings import transfer_config
from kvferry_contract.config import FailurePolicy, Role, TransportKind
from kvferry_runtime.ring.messages import Attached
from kvferry_runtime.sidecar.core import SidecarCore
from kvferry_runtime.sidecar.settings import SidecarSettings
from kvferry_runtime.transport.base import Transport
from kvferry_runtime.transport.memory import MemoryNetwork
from scripted_agent import SECONDS, Prompt, ScriptedAgent

KEY = b"k" * 32
TICK = 0.02


@dataclass
class Pod:
    core: SidecarCore
    agent: ScriptedAgent

    @property
    def peer(self) -> str:
        """As `Fetch` names it."""
        host, port = self.core.address
        return f"{host}:{port}"

    def slots(self) -> dict[str, int]:
        return {name: count for name, count in self.core.state()["ring"].items() if count}

    def metric(self, name: str, **labels: str) -> float:
        return self.core.metrics.registry.get_sample_value(f"kvferry_{name}", labels) or 0.0

    def record(self, transfer_id: str) -> dict[str, Any]:
        """As HTTP shows it; without a record, one without chunks and state."""
        records = self.core.records.find(transfer_id)
        return records[0].to_dict() if records else {"state": "", "chunks": 0}


@dataclass
class World:
    """Starts pods that reach each other, and takes them down."""

    directory: Path
    network: MemoryNetwork = field(default_factory=MemoryNetwork)
    pods: list[Pod] = field(default_factory=list)

    async def pod(
        self,
        role: Role,
        layers: range = range(4),
        total_layers: int = 4,
        *,
        slots: int = 16,
        name: str = "",
        port: int = 0,
        key: bytes = KEY,
        tick: float = TICK,
        drain: float = 30.0,
        transport: Transport | None = None,
        attach: dict[str, Any] | None = None,
        attached: bool = True,
        transport_kind: TransportKind = TransportKind.TCP,
        **transfer: Any,
    ) -> Pod:
        number = len(self.pods)
        folder = self.directory / f"pod-{number}"
        folder.mkdir()
        settings = SidecarSettings(
            role=role,
            group=name or f"ns/{role.value}-{number}",
            host="127.0.0.1",
            peer_port=port,
            http_port=0,
            ring_directory=folder,
            key=key,
            slots=slots,
            transfer=transfer_config(transport=transport_kind, **transfer),
            drain_seconds=drain,
            tick_seconds=tick,
        )
        core = SidecarCore(settings, transport or self.network.transport())
        await core.start()
        pod = Pod(core, ScriptedAgent(folder, role.value, layers, total_layers, attach or {}))
        self.pods.append(pod)
        if attached:
            assert isinstance(await pod.agent.attach(), Attached)
        return pod

    async def pair(self, policy: FailurePolicy = FailurePolicy.RECOMPUTE, **options: Any) -> tuple[Pod, Pod]:
        """A prefill and a decode with the same options."""
        prefill = await self.pod(Role.PREFILL, failure_policy=policy, **options)
        return prefill, await self.pod(Role.DECODE, failure_policy=policy, **options)

    async def close(self) -> None:
        for pod in self.pods:
            pod.agent.close()
            await pod.core.close()


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    made = World(directory)
    try:
        yield made
    finally:
        await made.close()


async def until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Wait for something that another part of the loop brings about."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  what brings it about has no event for tests
            await asyncio.sleep(0.005)


def transfer_id(number: int) -> str:
    return f"{number:032x}"


def same(agent: ScriptedAgent, transfer: str, *prompts: Prompt) -> bool:
    """Whether what was loaded is what these prompts hold, in every layer."""
    expected = {layer: data for prompt in prompts for layer, data in prompt.kv.items()}
    return {layer: bytes(data) for layer, data in agent.loaded[transfer].items()} == expected
