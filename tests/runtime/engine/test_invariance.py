"""An answer depends on its own request alone: not on its batch, its row, nor on what the engine did before."""

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest

import reference_engines as engines
from kvferry_runtime.engine.reference import model as models
from kvferry_runtime.engine.reference.kv import RequestKv, blocks_for
from kvferry_runtime.engine.reference.runner import DecodeRow, Runner, build, check_rows
from tiny_model import prompt_of

LENGTHS = (1, 2, 15, 16, 17, 100, 255, 256, 257, 700, 1025)


def prefilled(runner: Runner, prompt: list[int], room: int = 16) -> tuple[RequestKv, np.ndarray]:
    model = runner.model
    kv = RequestKv(model.layout, blocks_for(len(prompt) + room), model.dtype, model.device)
    start, logits = 0, None
    while logits is None:
        start, logits = runner.prefill(kv, prompt, start, lambda *_: None)
    return kv, logits


@pytest.fixture(params=["tiny", "tiny_bf16"])
def model(request: pytest.FixtureRequest) -> models.Model:
    models.make_deterministic(1)
    return models.load(request.getfixturevalue(request.param), "cpu", "auto")


def test_logits_are_those_of_transformers(tiny: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    models.make_deterministic(1)
    runner = Runner(models.load(tiny, "cpu", "auto"), rows=8)
    theirs = AutoModelForCausalLM.from_pretrained(tiny, attn_implementation="eager").eval()
    prompt = prompt_of(700)
    kv, logits = prefilled(runner, prompt)
    step = runner.decode([DecodeRow(kv, 65, len(prompt), len(prompt))])[0]
    with torch.inference_mode():
        expected = theirs(torch.tensor([[*prompt, 65]])).logits[0, -2:].numpy()
    np.testing.assert_allclose(np.stack([logits, step]), expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("rows", [1, 8, 16])
def test_a_row_is_bit_for_bit_the_same_in_any_place_and_company(model: models.Model, rows: int) -> None:
    runner = Runner(model, rows)
    steps = []
    for length in LENGTHS[:8]:
        kv, _ = prefilled(runner, prompt_of(length))
        steps.append(DecodeRow(kv, 65, length, length))
    alone = [runner.decode([step])[0] for step in steps]
    shuffler = random.Random(rows)
    for _ in range(3):
        order = shuffler.sample(range(len(steps)), k=shuffler.randint(2, len(steps)))
        for index, logits in zip(order, runner.decode([steps[index] for index in order]), strict=True):
            assert np.array_equal(logits, alone[index])


def test_the_self_test_accepts_independent_rows(model: models.Model) -> None:
    assert check_rows(model, 8)


def test_rows_that_influence_each_other_are_found_and_decoded_alone(tiny: Path) -> None:
    models.make_deterministic(1)
    model = models.load(tiny, "cpu", "auto")

    def leak(_module, _inputs, output):
        return output + output.mean(dim=0, keepdim=True) * 1e-3

    hook = model.module.model.layers[1].mlp.register_forward_hook(leak)
    try:
        assert not check_rows(model, 8)
        assert build(model, 8).rows == 1
    finally:
        hook.remove()


@pytest.mark.parametrize("folder", ["tiny", "tiny_bf16"])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.2, "top_p": 0.9, "top_k": 50, "seed": 7}])
async def test_answers_do_not_depend_on_company(folder: str, sampling: dict, request: pytest.FixtureRequest) -> None:
    engine = engines.start(request.getfixturevalue(folder), kv_blocks=1000)
    try:
        asked = [(prompt_of(length), 3 + length % 7) for length in LENGTHS]
        alone = [await engines.complete(engine, prompt, max_tokens=limit, **sampling) for prompt, limit in asked]
        together = await asyncio.gather(
            *(engines.complete(engine, prompt, max_tokens=limit, **sampling) for prompt, limit in asked)
        )
        assert [one.tokens for one in together] == [one.tokens for one in alone]
        assert engine.pool.free == engine.pool.total
    finally:
        engine.close(5)
