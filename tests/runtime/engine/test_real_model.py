"""The reference engine with SmolLM2-135M."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import reference_engines as engines
from kvferry_contract.config import Role
from kvferry_runtime.agent.loopback import Loopback, LoopbackAgent
from kvferry_runtime.engine import demo_model
from kvferry_runtime.engine.reference.engine import Engine

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[3] / "build" / "models" / "SmolLM2-135M-Instruct"
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, a ferry crossed a wide river every morning. " * 45,
)


@pytest.fixture(scope="module")
def folder() -> Path:
    demo_model.prepare(FOLDER, print)
    return FOLDER


@pytest.fixture(scope="module")
def trio(folder: Path) -> Iterator[tuple[Engine, Engine, Engine]]:
    fabric = Loopback()
    started = (
        engines.start(folder),
        engines.start(folder, LoopbackAgent(fabric), role=Role.PREFILL),
        engines.start(folder, LoopbackAgent(fabric), role=Role.DECODE),
    )
    yield started
    for engine in started:
        engine.close(10)
    fabric.close()


async def test_prefill_and_decode_say_what_one_engine_says(trio: tuple[Engine, Engine, Engine]) -> None:
    alone, prefill, decode = trio
    expected = [await engines.complete(alone, prompt, max_tokens=12) for prompt in PROMPTS]
    await asyncio.gather(
        *(
            engines.complete(prefill, prompt, max_tokens=1, kv_transfer_params=engines.transfer(number, "prefill"))
            for number, prompt in enumerate(PROMPTS)
        ),
        *(check(decode, prompt, number, expected[number].tokens) for number, prompt in enumerate(PROMPTS)),
    )
    assert "Paris" in expected[0].text


async def check(decode: Engine, prompt: str, number: int, tokens: list[int]) -> None:
    params = engines.transfer(number, "decode", deadline_ms=60_000)
    found = await engines.complete(decode, prompt, max_tokens=12, kv_transfer_params=params)
    assert found.end.mode == "transferred"
    assert found.tokens == tokens


async def test_it_answers_as_transformers_does(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    engine = engines.start(folder, dtype="fp32")
    try:
        found = await engines.complete(engine, PROMPTS[1], max_tokens=20)
    finally:
        engine.close(10)
    prompt = AutoTokenizer.from_pretrained(folder)(PROMPTS[1], return_tensors="pt")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = theirs.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert found.tokens == expected.tolist()
