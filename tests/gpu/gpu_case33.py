"""Case 33 on real streams: no layer is seen before it was computed, in a thousand transfers with slow kernels."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from gpu_machine import Machine

from device_engines import Engine, cache_of, hand_over
from eventually import eventually
from kv_settings import kv_layout, transfer_config
from kvferry_contract.config import Role
from kvferry_runtime.agent.device.agent import DeviceAgent
from kvferry_runtime.agent.device.memory import DeviceCache
from kvferry_runtime.bench.figures import Figure
from scripted_sidecar import ScriptedSidecar

LAYERS, BLOCKS, BLOCK_TOKENS, TOKENS = 8, 6, 8, 20
LAYOUT = kv_layout(LAYERS)
ROUNDS, LIMIT_S = 1000, 120.0


def check(machine: Machine) -> Iterator[Figure]:
    """`gpu.case33.rounds`: transfers in which every received layer held its own value; it must be all of them."""
    dice, rounds = random.Random(33), 2 if machine.dry else ROUNDS
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        prefill, decode = (_engine(stack, machine, folder, role) for role in (Role.PREFILL, Role.DECODE))
        begun, number = time.monotonic(), 0
        for number in range(rounds):
            blocks = dice.sample(range(BLOCKS), 3)
            values = [float(layer + number % 7) for layer in range(LAYERS)]
            hand_over(prefill, decode, number, blocks, values, lambda: dice.random() ** 8 * 0.05)
            for layer, value in enumerate(values):
                assert (decode.held(layer, blocks[::-1]) == value).all(), (
                    f"round {number}: layer {layer} is not its own"
                )
            if time.monotonic() - begun > LIMIT_S:
                break
        yield Figure("gpu.case33.rounds", number + 1, "transfers", float(rounds), (number + 1) / rounds, 1)


def _engine(stack: ExitStack, machine: Machine, folder: Path, role: Role) -> Engine:
    ring = folder / role.value
    ring.mkdir()
    sidecar = stack.enter_context(ScriptedSidecar(ring))
    agent = DeviceAgent(ring, role, transfer_config(), machine.gpu.device)
    stack.callback(agent.close, 5.0)
    agent.start(LAYOUT, {"model": "tiny"}, lambda: 0.0)
    sidecar.attach()
    eventually(lambda: agent.state().attached, "attached")
    tensors = cache_of(LAYOUT, BLOCKS, BLOCK_TOKENS, machine.gpu.where)
    return Engine(machine.gpu, agent, sidecar, tensors, DeviceCache(LAYOUT, tensors), TOKENS)
