"""From one engine's blocks on the device to another's, through two real sidecars and UCX on loopback."""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from gpu_machine import Machine

from device_engines import cache_of
from kv_settings import Outcomes, transfer_config
from kvferry_contract.config import Method, Role
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.agent.device.agent import DeviceAgent
from kvferry_runtime.agent.device.memory import DeviceCache
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape
from sidecar_pods import until
from sidecar_processes import SidecarProcess, running

HEADS, HEAD_DIM, BLOCK_TOKENS = 8, 128, 16
NEEDED = ("ucxx", "aiohttp", "prometheus_client")
METHODS = (Method.NONE, Method.INT8, Method.FP8)


def check(machine: Machine) -> Iterator[Figure]:
    """`gpu.engine_to_engine.<method>` in GB/s of raw bytes, against method none. Without UCX nothing is measured."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"sidecars: not measured, {', '.join(missing)} not installed")
        return
    none: float | None = None
    for method in METHODS[:1] if machine.dry else METHODS:
        seconds, raw_bytes, rounds = asyncio.run(_measured(machine, method))
        speed = raw_bytes / seconds / 1e9
        none = none or speed
        yield Figure(f"gpu.engine_to_engine.{method.value}", speed, "GB/s", none, speed / none, rounds)


async def _measured(machine: Machine, method: Method) -> tuple[float, int, int]:
    layers, tokens, rounds, chunk = (2, 64, 1, 1 << 16) if machine.dry else (32, 4096, 5, 4 << 20)
    layout = KvLayout(layers, 0, (LayerShape(2, HEADS, HEAD_DIM, KvDtype.BF16),) * layers)
    config: dict[str, Any] = {"chunk_bytes": chunk, "buffer_bytes": 64 * chunk, "method": method, "inflight_chunks": 8}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, ExitStack() as stack:
        sides = [
            SidecarProcess(Path(folder) / role.value, f"127.44.0.{number}", role, **config)
            for number, role in enumerate((Role.PREFILL, Role.DECODE), 1)
        ]
        async with running(*sides):
            agents = []
            for side in sides:
                agent = DeviceAgent(side.ring, side.role, transfer_config(**config), machine.gpu.device)
                stack.callback(agent.close, 5.0)
                agent.start(layout, {}, lambda: 0.0)
                agents.append(agent)
            await until(lambda: all(agent.state().attached for agent in agents))
            source, target = (cache_of(layout, tokens // BLOCK_TOKENS, BLOCK_TOKENS, machine.gpu.where) for _ in sides)
            for tensor in source:
                tensor.normal_()
            machine.synchronize()
            caches = [DeviceCache(layout, tensors) for tensors in (source, target)]
            times, raw_bytes = [], 0
            for number in range(1 + rounds):
                begun = time.perf_counter()
                result = await _moved(agents, caches, sides[0].peer, number, tokens)
                times.append(time.perf_counter() - begun)
                raw_bytes = result.raw_bytes
            machine.synchronize()
            if method is Method.NONE:
                assert all(torch.equal(ours, theirs) for ours, theirs in zip(source, target, strict=True))
            return sorted(times[1:])[rounds // 2], raw_bytes, rounds


async def _moved(
    agents: list[DeviceAgent], caches: list[DeviceCache], peer: str, number: int, tokens: int
) -> LoadResult:
    """One transfer of a request that holds every block."""
    prefill, decode = agents
    name, blocks = f"{number + 1:032x}", list(range(tokens // BLOCK_TOKENS))
    sent, loaded = Outcomes(), Outcomes()
    offered = prefill.offer(
        TransferParams(name, "prefill", (), 60_000), prefill.memory(caches[0], blocks), tokens, sent
    )
    decode.fetch(TransferParams(name, "decode", (peer,), 60_000), decode.memory(caches[1], blocks), 0, tokens, loaded)
    for layer in caches[0].layout.layers:
        offered.layer_final(layer, 0, tokens)
    offered.seal(None)
    result = await asyncio.to_thread(loaded.wait, 60.0)
    assert await asyncio.to_thread(sent.wait, 60.0) is None
    assert isinstance(result, LoadResult), result
    return result
