"""Prefill and decode as pipeline stages: real sidecar cores and real agents over engines' memory, in one process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_settings import Outcomes, transfer_config
from kvferry_contract.config import Role
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import KvMemory, LoadResult, SendHandle
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.agent.staged import fetch_stage, offer_stages
from kvferry_runtime.errors import TransferFailed
from kvferry_runtime.layout import KvLayout, LayerShape
from sidecar_pods import Pod, World, transfer_id, until

Tensors = list[npt.NDArray[np.generic]]
DEADLINE = 60.0
PASS_TOKENS = 64
FIRST_TOKEN = 7


@dataclass
class Stage:
    """One pod and what it holds."""

    pod: Pod
    agent: HostAgent
    layout: KvLayout

    def values(self, prompt: int, tokens: int) -> Tensors:
        """Random bytes that depend on the prompt and the layer's number in the model alone."""
        return [prompt_layer(prompt, layer, self.layout.shape(layer), tokens) for layer in self.layout.layers]

    def room(self, tokens: int) -> Tensors:
        return [np.zeros_like(prompt_layer(0, 0, shape, tokens)) for shape in self.layout.shapes]

    def memory(self, tensors: Tensors) -> KvMemory:
        return ContiguousKv(self.layout, tensors)


def prompt_layer(prompt: int, layer: int, shape: LayerShape, tokens: int) -> npt.NDArray[np.generic]:
    dtype = np.dtype(f"u{shape.dtype.itemsize}")
    size = (shape.parts, tokens, shape.heads, shape.head_dim)
    generator = np.random.default_rng([prompt, layer])
    if dtype.itemsize == 2:
        return generator.integers(0x3F00, 0x4000, size, dtype)  # finite bf16 of one size, so that lossy methods apply
    return generator.integers(0, 2**8, size, dtype)


@dataclass
class Offered:
    stage: Stage
    handle: SendHandle
    done: Outcomes

    def compute(self, start: int, stop: int) -> None:
        """One chunk of the prompt through the layers of this stage."""
        for layer in self.stage.layout.layers:
            self.handle.layer_final(layer, start, stop)


@dataclass
class Loading:
    stage: Stage
    tensors: Tensors
    done: Outcomes

    async def end(self) -> LoadResult | TransferFailed:
        outcome: LoadResult | TransferFailed = await asyncio.to_thread(self.done.wait)
        return outcome


@dataclass
class Pipeline:
    """Both roles, each with its split; transfers between them."""

    prefill: list[Stage] = field(default_factory=list)
    decode: list[Stage] = field(default_factory=list)
    prefill_split: Sequence[range] = ()
    decode_split: Sequence[range] = ()

    def offer(self, prompt: int, tokens: int, seconds: float = DEADLINE) -> list[Offered]:
        params = TransferParams(transfer_id(prompt), "prefill", (), int(seconds * 1000))
        offered = []
        for stage in self.prefill:
            done = Outcomes()
            memory = stage.memory(stage.values(prompt, tokens))
            send = offer_stages(stage.agent, params, memory, tokens, stage.layout.layers, self.decode_split, done)
            offered.append(Offered(stage, send, done))
        return offered

    def fetch(self, prompt: int, tokens: int, seconds: float = DEADLINE, kept: int | None = None) -> list[Loading]:
        """kept: tokens for which there is room, if not all."""
        peers = tuple(stage.pod.peer for stage in self.prefill)
        params = TransferParams(transfer_id(prompt), "decode", peers, int(seconds * 1000))
        loading = []
        for number, stage in enumerate(self.decode):
            done, tensors = Outcomes(), stage.room(tokens if kept is None else kept)
            fetch_stage(
                stage.agent, params, stage.memory(tensors), 0, tokens, number, self.decode_split, self.prefill_split,
                done,
            )  # fmt: skip
            loading.append(Loading(stage, tensors, done))
        return loading

    async def hand_over(self, prompt: int, tokens: int, kept: int | None = None) -> list[tuple[Loading, LoadResult]]:
        """One prompt, chunk by chunk through all stages, as a pipeline computes it."""
        offered, loading = self.offer(prompt, tokens), self.fetch(prompt, tokens, kept=kept)
        for start in range(0, tokens, PASS_TOKENS):
            for each in offered:
                each.compute(start, min(start + PASS_TOKENS, tokens))
            await asyncio.sleep(0)
        for each in offered:
            each.handle.seal(FIRST_TOKEN if each is offered[-1] else None)
        results = [await each.end() for each in loading]
        for each in offered:
            assert await asyncio.to_thread(each.done.wait) is None
        assert all(isinstance(result, LoadResult) for result in results), results
        return [(each, found) for each, found in zip(loading, results, strict=True) if isinstance(found, LoadResult)]

    async def settled(self) -> None:
        """Every slot is free again or posted, and nobody waits for anything."""

        def over() -> bool:
            return all(
                not stage.pod.core.open_transfers
                and not stage.agent.state().open_sends + stage.agent.state().open_loads
                and set(stage.pod.slots()) <= {"slots", "free", "posted"}
                for stage in [*self.prefill, *self.decode]
            )

        await until(over)


@asynccontextmanager
async def pipeline(
    world: World,
    model: Sequence[LayerShape],
    prefill: Sequence[range],
    decode: Sequence[range],
    *,
    kinds_known: bool = True,
    **transfer: Any,
) -> AsyncIterator[Pipeline]:
    """kinds_known: whether engines know the shapes of layers that they do not hold."""
    made = Pipeline(prefill_split=prefill, decode_split=decode)
    with contextlib.ExitStack() as stack:
        for role, split, stages in ((Role.PREFILL, prefill, made.prefill), (Role.DECODE, decode, made.decode)):
            for layers in split:
                pod = await world.pod(role, attached=False, tick=0.1, **transfer)
                layout = KvLayout.stage(model, layers)
                if not kinds_known:
                    layout = KvLayout(len(model), layers.start, layout.shapes)
                agent = HostAgent(pod.agent.directory, role, transfer_config(**transfer))
                stack.callback(agent.close, 5.0)
                stages.append(Stage(pod, agent, layout))
        # not before all exist: kernels may have to be compiled, during which no sidecar answers a beat
        for stage in [*made.prefill, *made.decode]:
            stage.agent.start(stage.layout, {"model": "m"}, lambda: 0.0)
        await until(lambda: all(stage.agent.state().attached for stage in [*made.prefill, *made.decode]))
        yield made
