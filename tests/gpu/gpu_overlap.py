"""How much of the copies hides behind a forward pass, and what they cost it.

The pass is made up: for each layer as many multiplications of matrices as a model of eight billion parameters has.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from gpu_machine import Machine

from device_engines import cache_of
from kvferry_contract.config import Integrity
from kvferry_runtime.agent.device.filling import Filling
from kvferry_runtime.agent.device.memory import DeviceCache, DeviceKv
from kvferry_runtime.agent.device.slot_codec import DeviceSlotCodec
from kvferry_runtime.agent.self_check import SelfCheck
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.codec.device.registry import device_codecs
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape
from kvferry_runtime.plan import Chunk
from kvferry_runtime.ring.memory import RingMemory

WAIT_S = 60.0
BLOCK_TOKENS, HEADS, HEAD_DIM = 16, 8, 128


def check(machine: Machine) -> Iterator[Figure]:
    """`gpu.overlap.hidden_share`: of the time that copies alone take, how much a pass with copies does not end later
    than one without. `gpu.overlap.step_growth`: how much longer the pass itself takes, against one without copies.
    `gpu.overlap.hook_us`: what one announcement costs the engine's thread."""
    layers, tokens, width = (2, 32, 64) if machine.dry else (32, 4096, 4096)
    layout = KvLayout(layers, 0, (LayerShape(2, HEADS, HEAD_DIM, KvDtype.BF16),) * layers)
    shape = layout.shapes[0]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        ring = RingMemory.create(Path(folder), layers, shape.bytes_per_token * tokens, "boot")
        stack.callback(ring.close)
        codecs = device_codecs()
        none = codecs["none"]
        copier = DeviceSlotCodec(
            machine.gpu.device, none, none, codecs, {}, Integrity.HEADER, SelfCheck(0.05), BLOCK_TOKENS
        )
        stack.callback(copier.close, WAIT_S)
        copier.attached(ring)
        tensors = cache_of(layout, tokens // BLOCK_TOKENS, BLOCK_TOKENS, machine.gpu.where)
        cache = DeviceCache(layout, tensors)
        chunks = [Chunk(i, i, 1, 0, tokens, False, shape.bytes_per_token * tokens) for i in range(layers)]
        step = _pass(machine, tensors, tokens, width)

        def run(computing: bool, copying: bool) -> tuple[float, float, float]:
            """Seconds until the pass and until the copies are over, and seconds in announcements."""
            memory = DeviceKv(cache, machine.gpu.device, list(range(tokens // BLOCK_TOKENS)))
            machine.synchronize()
            begun, hooks = time.perf_counter(), 0.0
            fillings: list[Filling] = []
            for chunk in chunks:
                if computing:
                    machine.gpu.compute(lambda layer=chunk.layer: step(layer))
                if copying:
                    at = time.perf_counter()
                    memory.record_final(chunk.layer, tokens)
                    hooks += time.perf_counter() - at
                    fillings.append(copier.fill(ring, chunk.sequence, layout, memory, "0" * 32, 0, chunk, ""))
            event = machine.gpu.device.record_current()
            event.synchronize()
            passed = time.perf_counter() - begun
            for filling in fillings:
                _await(filling)
            return passed, time.perf_counter() - begun, hooks / len(chunks)

        medians = [
            [sorted(times)[len(times) // 2] for times in zip(*(run(*mode) for _ in range(rounds)), strict=True)]
            for mode in ((True, False), (False, True), (True, True))
            for rounds in [1 + min(5, machine.rounds)]
        ]
        (pass_alone, _, _), (_, copies_alone, _), (pass_with, all_over, hook) = medians
        exposed = max(0.0, all_over - pass_alone)
        share = 1 - exposed / copies_alone
        yield Figure("gpu.overlap.hidden_share", share, "share", copies_alone, share, 5)
        yield Figure("gpu.overlap.step_growth", pass_with, "s", pass_alone, pass_with / pass_alone, 5)
        yield Figure("gpu.overlap.hook_us", hook * 1e6, "us", None, None, 5)


def _pass(machine: Machine, tensors: list[torch.Tensor], tokens: int, width: int) -> Callable[[int], None]:
    """A layer's matrices, and K and V at the end of it."""
    values = torch.randn(tokens, width, device=machine.gpu.where, dtype=torch.bfloat16)
    weights = torch.randn(width, width, device=machine.gpu.where, dtype=torch.bfloat16)

    def step(layer: int) -> None:
        for _ in range(7):  # 7 * 4096^2: about the weights of a layer of 218M parameters, half as many
            torch.mm(values, weights)
        tensors[layer].fill_(layer)

    return step


def _await(filling: Filling) -> None:
    deadline = time.monotonic() + WAIT_S
    while filling.result() is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"a chunk was not in its slot within {WAIT_S} s")
        time.sleep(2e-5)
