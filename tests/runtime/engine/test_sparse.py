"""Tokens that are left out of a transfer are gone from decode's cache, and the others stay where they were."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import reference_engines as engines
from kv_settings import transfer_config
from kvferry_contract.config import FailurePolicy, Method, Role
from kvferry_runtime.agent.loopback import Loopback, LoopbackAgent
from kvferry_runtime.codec.sparse.budget import SPARSE75, Budget
from kvferry_runtime.codec.sparse.selection import select
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.kv import blocks_for
from kvferry_runtime.engine.reference.observation import OBSERVED_QUERIES
from kvferry_runtime.engine.reference.request import Mode
from kvferry_runtime.engine.reference.runner import DecodeRow
from kvferry_runtime.errors import Reason
from reference_engines import until
from sparse_answers import ANSWER, HALF, carried, expected, loaded, prefilled
from tiny_model import prompt_of


def test_scores_are_the_attention_that_transformers_computes(tiny: Path) -> None:
    """The observed queries of 540 tokens begin in one chunk of prefill and end in the next."""
    prompt = prompt_of(540)
    _, shared, _ = prefilled(loaded(tiny), prompt)
    theirs = AutoModelForCausalLM.from_pretrained(tiny, attn_implementation="eager").eval()
    with torch.inference_mode():
        attentions = theirs(torch.tensor([prompt]), output_attentions=True).attentions
    for layer, weights in enumerate(attentions):
        mass = weights[0, :, -OBSERVED_QUERIES:].sum(dim=1).view(2, 3, -1).sum(dim=1)
        torch.testing.assert_close(shared.mass._mass[layer], mass, atol=1e-4, rtol=1e-3)


def test_decode_computes_what_transformers_computes_with_those_tokens_masked(tiny: Path) -> None:
    """True positions, and attention over the kept tokens alone: the same tokens in every layer, so that a mask can
    say it."""
    prompt, budget = prompt_of(600), Budget(SPARSE75, 16, 64)
    runner = loaded(tiny)
    _, shared, first = prefilled(runner, prompt)
    scores = shared.scores(1)
    shared.mass.scores = lambda layer: scores
    kv = carried(runner, shared, len(prompt), budget)
    kept = budget.kept(len(prompt))
    found = [
        runner.decode([DecodeRow(kv, token, len(prompt) + step, kept + step)])[0]
        for step, token in enumerate((first, 65, 66))
    ]
    mask = select(scores, kept, 16, 64).astype(np.int64).tolist()
    theirs = AutoModelForCausalLM.from_pretrained(tiny, attn_implementation="eager").eval()
    with torch.inference_mode():
        past = theirs(torch.tensor([prompt]), use_cache=True).past_key_values
        for step, token in enumerate((first, 65, 66)):
            output = theirs(
                torch.tensor([[token]]),
                cache=past,
                attention_mask=torch.tensor([mask + [1] * (step + 1)]),
                position_ids=torch.tensor([[len(prompt) + step]]),
            )
            np.testing.assert_allclose(found[step], output.logits[0, -1].numpy(), atol=2e-4, rtol=1e-3)


@pytest.fixture
def make_pair(tiny: Path) -> Iterator[Callable[..., tuple[Loopback, Engine, Engine]]]:
    fabric, started = Loopback(), []

    def make(sent: Budget = HALF, **changes: object) -> tuple[Loopback, Engine, Engine]:
        """Both sides are configured for sparse50; sent: what prefill really does."""
        changes = {"transfer": transfer_config(method=Method.SPARSE50), **changes}
        for role, budget in ((Role.PREFILL, sent), (Role.DECODE, HALF)):
            started.append(engines.start(tiny, LoopbackAgent(fabric, budget), role=role, **changes))
        return fabric, *started

    yield make
    for engine in started:
        engine.close(5)
    fabric.close()


async def ask(prefill: Engine, decode: Engine, number: int, prompt: list[int]) -> engines.Completion:
    fields = {"ignore_eos": True}
    _, answer = await asyncio.gather(
        engines.complete(
            prefill, prompt, max_tokens=1, kv_transfer_params=engines.transfer(number, "prefill"), **fields
        ),
        engines.complete(
            decode, prompt, max_tokens=ANSWER, kv_transfer_params=engines.transfer(number, "decode"), **fields
        ),
    )
    return answer


async def test_sparse_and_dense_requests_decode_side_by_side(make_pair, tiny: Path) -> None:
    """Case 32: prompts within the protected tokens are kept whole; all share the passes of one engine."""
    _, prefill, decode = make_pair()
    lengths = (30, 80, 81, 161, 300, 513, 1100)
    answers = await asyncio.gather(*(ask(prefill, decode, length, prompt_of(length)) for length in lengths))
    runner = loaded(tiny)
    for length, answer in zip(lengths, answers, strict=True):
        assert answer.tokens == expected(runner, prompt_of(length), HALF), f"prompt of {length} tokens"
        assert answer.end.mode is Mode.TRANSFERRED
        assert answer.end.cached_tokens == length
        assert (answer.end.transfer.wire_bytes < 0.6 * answer.end.transfer.raw_bytes) == (length >= 161)
    await until(lambda: decode.pool.free == decode.pool.total and decode.loop.idle())


async def test_two_prompts_fit_where_one_would_have(make_pair) -> None:
    """Decode reserves blocks for the kept tokens alone."""
    prompt, needed = prompt_of(1000), blocks_for(500 + ANSWER - 1)
    _, _, decode = make_pair(kv_blocks=blocks_for(len(prompt) + ANSWER - 1) + 1)
    waiting = [
        asyncio.create_task(
            engines.complete(decode, prompt, max_tokens=ANSWER, kv_transfer_params=engines.transfer(number, "decode"))
        )
        for number in (1, 2)
    ]
    try:
        await until(lambda: decode.loop.counts()["parked"] == 2)
        assert decode.pool.total - decode.pool.free == 2 * needed
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("kv_blocks", [400, blocks_for(1000 + ANSWER)], ids=["room for all", "room for one"])
async def test_what_did_not_arrive_is_computed_whole(make_pair, tiny: Path, kv_blocks: int) -> None:
    """The blocks for the kept tokens do not suffice then: the request waits for as many as the whole prompt needs."""
    fabric, prefill, decode = make_pair(kv_blocks=kv_blocks)
    fabric.fail(Reason.PEER_LOST)
    prompts = [prompt_of(1000), prompt_of(999)]
    answers = await asyncio.gather(*(ask(prefill, decode, len(prompt), prompt) for prompt in prompts))
    runner = loaded(tiny)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == expected(runner, prompt, None)
        assert (answer.end.mode, answer.end.why) == (Mode.RECOMPUTED, Reason.PEER_LOST)
    await until(lambda: decode.pool.free == decode.pool.total and decode.loop.idle())


async def test_another_number_of_kept_tokens_is_not_taken_for_the_right_one(make_pair) -> None:
    """Prefill of an older configuration keeps a quarter, decode has room for half."""
    _, prefill, decode = make_pair(sent=Budget(SPARSE75, 16, 64), failure_policy=FailurePolicy.FAIL)
    answer = await ask(prefill, decode, 1, prompt_of(1000))
    assert answer.failed.status == 502
    await until(lambda: decode.pool.free == decode.pool.total and decode.loop.idle())
