"""Engines that compute late, on a GPU or on its stand-in, each with an agent and the sidecar of its pod."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kv_settings import Outcomes, transfer_params
from kvferry_runtime.agent.base import LoadResult, SendHandle
from kvferry_runtime.agent.device.agent import DeviceAgent
from kvferry_runtime.agent.device.cuda import CudaDevice
from kvferry_runtime.agent.device.memory import DeviceCache
from kvferry_runtime.agent.device.streams import Device
from kvferry_runtime.layout import KvLayout
from scripted_sidecar import Relay, ScriptedSidecar
from stand_in_device import StandInDevice

GARBAGE = 3.0
"""What a layer holds before it is computed."""
_CYCLES_A_SECOND = 1_700_000_000


class Gpu(Protocol):
    """device: as agents take it. where: as tensors take it."""

    device: Device
    where: torch.device

    def compute(self, kernel: Callable[[], object], seconds: float = 0.0) -> None:
        """Queue a kernel behind something slow on the engine's stream; the host goes on."""
        ...


class StandInGpu:
    def __init__(self, device: StandInDevice | None = None) -> None:
        self.device = device or StandInDevice()
        self.where = torch.device("cpu")

    def compute(self, kernel: Callable[[], object], seconds: float = 0.0) -> None:
        def late() -> None:
            time.sleep(seconds)
            kernel()

        self.device.compute.submit(late)


class CudaGpu:
    def __init__(self) -> None:
        self.where = torch.device("cuda", 0)
        self.device = CudaDevice(self.where)

    def compute(self, kernel: Callable[[], object], seconds: float = 0.0) -> None:
        torch.cuda._sleep(int(seconds * _CYCLES_A_SECOND))
        kernel()


@dataclass
class Engine:
    """One engine: its cache, its agent, and the scripted sidecar of its pod."""

    gpu: Gpu
    agent: DeviceAgent
    sidecar: ScriptedSidecar
    tensors: list[torch.Tensor]
    cache: DeviceCache
    tokens: int

    def fill(self, value: float) -> None:
        """Every layer, at once."""
        for tensor in self.tensors:
            tensor.fill_(value)
        if self.gpu.where.type == "cuda":
            torch.cuda.synchronize()

    def held(self, layer: int, blocks: list[int]) -> torch.Tensor:
        """[tokens, parts, heads, head_dim] as a request with these blocks sees them."""
        return torch.cat([self.tensors[layer][block].transpose(0, 1) for block in blocks])[: self.tokens].cpu()

    def compute(self, offer: SendHandle, layer: int, value: float, seconds: float = 0.0) -> None:
        """Queue what makes a layer's values, and announce it at once."""
        tensor = self.tensors[layer]
        self.gpu.compute(lambda: tensor.fill_(value), seconds)
        offer.layer_final(layer, 0, self.tokens)


def cache_of(layout: KvLayout, blocks: int, block_tokens: int, where: torch.device) -> list[torch.Tensor]:
    """Tensors for a bf16 `DeviceCache`, all zero."""
    return [
        torch.zeros(blocks, shape.parts, block_tokens, shape.heads, shape.head_dim, dtype=torch.bfloat16, device=where)
        for shape in layout.shapes
    ]


def hand_over(
    prefill: Engine, decode: Engine, number: int, blocks: list[int], values: Sequence[float],
    seconds: Callable[[], float] = lambda: 0.0,
) -> LoadResult:  # fmt: skip
    """One whole transfer; decode has the blocks in reverse order.

    values: what each layer holds once it is computed. seconds: asked for each layer, by how much it is late.
    """
    sent, loaded = Outcomes(), Outcomes()
    relay = Relay(prefill.sidecar, decode.sidecar)
    relay.start()
    prefill.fill(GARBAGE)
    decode.fill(0.0)
    source, target = prefill.agent.memory(prefill.cache, blocks), decode.agent.memory(decode.cache, blocks[::-1])
    offer = prefill.agent.offer(transfer_params("prefill", number), source, prefill.tokens, sent)
    decode.agent.fetch(transfer_params("decode", number), target, 0, decode.tokens, loaded)
    for layer, value in enumerate(values):
        prefill.compute(offer, layer, value, seconds())
    offer.seal(first_token=7)
    result = loaded.wait()
    assert sent.wait() is None
    relay.join()
    assert relay.error is None
    assert isinstance(result, LoadResult)
    return result
