"""SmolLM2-135M, 30 layers, over 4 stages of prefill and 3 of decode: the tokens that it has in one piece."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import reference_engines as engines
from engine_pods import Sides, engine_pods
from kvferry_contract.config import Method
from kvferry_contract.split import Split
from kvferry_runtime.engine import demo_model
from kvferry_runtime.engine.reference.chunks import PREFILL_CHUNK
from kvferry_runtime.engine.reference.request import Mode

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[3] / "build" / "models" / "SmolLM2-135M-Instruct"
ONE, FOUR, THREE = Split(1), Split(4), Split(3, (10, 12, 8))
LAYERS = 30
TOKEN_BYTES = 2 * 3 * 64 * 2
"""Of one layer: K and V, 3 heads of 64 values in bf16."""
SIZES = {"activation_bytes": PREFILL_CHUNK * 576 * 2, "kv_blocks": 128, "chunk_bytes": 64 << 10,
         "buffer_bytes": 64 * (64 << 10)}  # fmt: skip
PROMPTS = {
    1: "The capital of France is",
    2: "def fibonacci(n):\n" * 30,
    3: "Once upon a time, a ferry crossed a wide river every morning. " * 40,
}
"""By number. The second one is longer than what stays exact, the third one takes three passes."""
SAMPLING = {"temperature": 1.0, "seed": 5, "max_tokens": 10, "ignore_eos": True}

Answers = dict[int, list[int]]


@pytest.fixture(scope="module")
def folder() -> Path:
    demo_model.prepare(FOLDER, print)
    return FOLDER


@pytest.fixture(scope="module")
def alone(folder: Path) -> Answers:
    async def ask() -> Answers:
        return {
            number: (await engines.complete(engine, prompt, **SAMPLING)).tokens for number, prompt in PROMPTS.items()
        }

    engine = engines.start(folder, kv_blocks=128)
    try:
        return asyncio.run(ask())
    finally:
        engine.close(10)


async def answers(sides: Sides) -> tuple[Answers, dict[int, float]]:
    """Tokens, and wire bytes as a share of raw bytes."""
    found = await asyncio.gather(*(sides.ask(number, prompt, **SAMPLING) for number, prompt in PROMPTS.items()))
    await sides.settled()
    tokens, shares = {}, {}
    for number, (first, rest) in zip(PROMPTS, found, strict=True):
        assert rest.failed is None and rest.end is not None and rest.end.transfer is not None, rest.failed
        assert rest.end.mode is Mode.TRANSFERRED
        assert rest.tokens[:1] == first.tokens
        assert rest.end.transfer.raw_bytes == rest.end.cached_tokens * LAYERS * TOKEN_BYTES
        sent = sides.sent(number)
        assert sum(each["layer_count"] for each in sent) == LAYERS
        assert {each["state"] for each in [*sent, *sides.received(number)]} == {"committed"}
        tokens[number] = rest.tokens
        shares[number] = rest.end.transfer.wire_bytes / rest.end.transfer.raw_bytes
    return tokens, shares


async def test_thirty_layers_over_four_stages_give_the_tokens_of_one_engine(
    folder: Path, tmp_path: Path, alone: Answers
) -> None:
    async with engine_pods(tmp_path, folder, FOUR, THREE, **SIZES) as sides:
        found, shares = await answers(sides)
        assert len(sides.sent(3)) == 6, "stages that share layers"
    assert found == alone
    assert set(shares.values()) == {1.0}


async def test_fp8_loses_the_same_over_four_stages(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, alone: Answers
) -> None:
    found = []
    for prefill, decode in ((ONE, ONE), (FOUR, THREE)):
        scratch = tmp_path_factory.mktemp("pods")
        async with engine_pods(scratch, folder, prefill, decode, method=Method.FP8, **SIZES) as sides:
            found.append(await answers(sides))
    (one, one_shares), (other, other_shares) = found
    assert other == one
    for shares in (one_shares, other_shares):
        assert shares[1] == 1.0 and shares[2] < 0.9 and shares[3] < 0.7
    assert one[1] == alone[1] and one != alone, "what is lost shows in the tokens"
