"""Whole reference engines on the device: prefill and decode together answer as one engine does."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from gpu_machine import Machine

from kvferry_runtime.bench.figures import Figure

NEEDED = ("transformers", "tokenizers", "safetensors", "aiohttp", "prometheus_client")
MODEL = Path(__file__).parents[2] / "build" / "models" / "SmolLM2-135M-Instruct"
LENGTHS, ROUNDS = (1, 100, 512, 700, 1500), 5


def check(machine: Machine) -> Iterator[Figure]:
    """`gpu.engine.equal`: share of prompts with the same tokens; it must be 1. `gpu.engine.first_token`: seconds until
    prefill's token with a transfer, against without one. Without transformers nothing is measured."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"engine: not measured, {', '.join(missing)} not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        model = MODEL
        if machine.dry or not MODEL.is_dir():
            import tiny_model

            print(f"engine: {'a dry run' if machine.dry else f'no {MODEL}'}: a tiny model with random weights")
            model = tiny_model.make(Path(folder) / "tiny", dtype="bfloat16")
        yield from asyncio.run(_measured(machine, model, Path(folder)))


async def _measured(machine: Machine, model: Path, folder: Path) -> list[Figure]:
    import device_reference_engines
    import reference_engines as engines

    lengths, rounds = (LENGTHS[1:2], 1) if machine.dry else (LENGTHS, ROUNDS)
    device = machine.gpu.device
    async with AsyncExitStack() as stack:
        trio = await device_reference_engines.start(stack, model, folder, device, device, device=machine.gpu.where.type)
        equal = []
        for number, length in enumerate(lengths):
            whole = await engines.complete(trio.alone, _prompt(length), ignore_eos=True)
            _, rest, _ = await trio.ask(number, _prompt(length), ignore_eos=True)
            assert rest.end is not None and rest.end.mode == "transferred", f"prompt of {length} tokens: {rest}"
            equal.append(rest.tokens == whole.tokens)
        prompt, without, within = _prompt(lengths[-1]), [], []
        for number in range(rounds):
            begun = time.perf_counter()
            await engines.complete(trio.alone, prompt, max_tokens=1)
            without.append(time.perf_counter() - begun)
            within.append((await trio.ask(len(lengths) + number, prompt)).first_seconds)
        await trio.all_free()
    share, alone, together = sum(equal) / len(equal), sorted(without)[rounds // 2], sorted(within)[rounds // 2]
    assert all(equal), f"other answers for prompts {[n for n, same in zip(lengths, equal, strict=True) if not same]}"
    return [
        Figure("gpu.engine.equal", share, "share", 1.0, share, len(equal)),
        Figure("gpu.engine.first_token", together, "s", alone, together / alone, rounds),
    ]


def _prompt(length: int) -> list[int]:
    return random.Random(length).choices(range(256), k=length)
