"""Prefill here, decode there: the same answer as from one engine, and blocks come back whatever happens."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import reference_engines as engines
from kvferry_contract.config import FailurePolicy, Role
from kvferry_runtime.agent.loopback import Loopback, LoopbackAgent
from kvferry_runtime.engine.reference.chunks import PREFILL_CHUNK
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.openai import Api, parse
from kvferry_runtime.engine.reference.request import FinishReason, Mode
from kvferry_runtime.errors import Reason
from reference_engines import until
from tiny_model import prompt_of

LENGTHS = (1, 16, 255, 256, 257, 1100)


class Pair(NamedTuple):
    fabric: Loopback
    prefill: Engine
    decode: Engine

    async def ask(self, number: int, prompt: list[int], **fields: object) -> tuple[engines.Completion, ...]:
        """What the router does: both at the same time, one transfer id."""
        params = {**fields, "max_tokens": 1, "kv_transfer_params": engines.transfer(number, "prefill")}
        return await asyncio.gather(
            engines.complete(self.prefill, prompt, **params),
            engines.complete(self.decode, prompt, **fields, kv_transfer_params=engines.transfer(number, "decode")),
        )


@pytest.fixture
def make_pair(tiny: Path) -> Iterator[Callable[..., Pair]]:
    fabric, started = Loopback(), []

    def make(folder: Path = tiny, policy: FailurePolicy = FailurePolicy.RECOMPUTE, **changes: object) -> Pair:
        pair = Pair(
            fabric,
            engines.start(folder, LoopbackAgent(fabric), role=Role.PREFILL, **changes),
            engines.start(folder, LoopbackAgent(fabric), role=Role.DECODE, failure_policy=policy, **changes),
        )
        started.extend(pair[1:])
        return pair

    yield make
    for engine in started:
        engine.close(5)
    fabric.close()


async def all_free(*some: Engine) -> None:
    for engine in some:
        await until(lambda engine=engine: engine.pool.free == engine.pool.total and engine.loop.idle())


async def start_and_leave(engine: Engine, prompt: list[int], reached: Callable[[], bool], **fields: object) -> None:
    """A client that goes away as soon as `reached`."""
    task = asyncio.create_task(engines.complete(engine, prompt, **fields))
    await until(reached)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture(params=["tiny", "tiny_bf16"])
async def folder(request: pytest.FixtureRequest) -> AsyncIterator[Path]:
    yield request.getfixturevalue(request.param)


async def test_the_end_of_a_prompt_that_did_not_come_is_computed_as_one_engine_would(make_pair, folder: Path) -> None:
    """The link brought the first chunk alone; shorter prompts came whole."""
    pair = make_pair(folder)
    pair.fabric.collapse(slow=True)
    alone = engines.start(folder)
    try:
        expected = [await engines.complete(alone, prompt_of(length)) for length in LENGTHS]
    finally:
        alone.close(5)
    found = await asyncio.gather(*(pair.ask(length, prompt_of(length)) for length in LENGTHS))
    for length, (_, rest), whole in zip(LENGTHS, found, expected, strict=True):
        assert rest.tokens == whole.tokens
        assert rest.end is not None and rest.end.mode is Mode.TRANSFERRED
        assert rest.end.cached_tokens == min(length, PREFILL_CHUNK)
    await all_free(pair.prefill, pair.decode)


async def test_an_engine_that_may_not_compute_anew_gets_every_token(make_pair) -> None:
    pair = make_pair(policy=FailurePolicy.FAIL)
    pair.fabric.collapse(slow=True)
    _, rest = await pair.ask(1, prompt_of(1100))
    assert rest.end is not None and rest.end.cached_tokens == 1100


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.0, "top_p": 0.95, "seed": 11}])
async def test_answers_equal_those_of_one_engine(make_pair, folder: Path, sampling: dict) -> None:
    pair = make_pair(folder)
    alone = engines.start(folder)
    try:
        expected = [await engines.complete(alone, prompt_of(length), **sampling) for length in LENGTHS]
    finally:
        alone.close(5)
    found = await asyncio.gather(*(pair.ask(length, prompt_of(length), **sampling) for length in LENGTHS))
    for length, (first, rest), whole in zip(LENGTHS, found, expected, strict=True):
        assert rest.tokens == whole.tokens
        assert rest.text == whole.text
        assert first.tokens == whole.tokens[:1]
        assert rest.end.mode is Mode.TRANSFERRED
        assert rest.end.cached_tokens == length
        assert rest.end.transfer.raw_bytes > 0
        assert (first.end.mode, first.end.cached_tokens) == (Mode.LOCAL, 0)
    await all_free(pair.prefill, pair.decode)


async def test_an_end_token_from_prefill_ends_decode_too(make_pair) -> None:
    pair = make_pair()
    prompt = prompt_of(40)
    first = (await engines.complete(pair.prefill, prompt, max_tokens=1)).tokens[0]
    prefill, decode = await pair.ask(1, prompt, stop_token_ids=[first])
    assert prefill.tokens == decode.tokens == [first]
    assert prefill.end.reason is decode.end.reason is FinishReason.STOP


async def test_prefill_leaves_to_decode_what_is_not_certain(make_pair) -> None:
    """Half of a character, or the beginning of a stop string, is shown by decode when it knows the next token."""
    pair = make_pair()
    prompt = prompt_of(60)
    text = (await engines.complete(pair.prefill, prompt, max_tokens=1)).text
    prefill, _ = await pair.ask(1, prompt, stop=[text + "never"])
    assert text
    assert prefill.text == ""


@pytest.mark.parametrize("reason", [Reason.PEER_LOST, Reason.CORRUPT, Reason.SIDECAR_LOST, Reason.DEADLINE])
async def test_recompute_gives_the_right_answer_and_says_so(make_pair, reason: Reason) -> None:
    pair = make_pair()
    prompt = prompt_of(700)
    expected = await engines.complete(pair.decode, prompt)
    pair.fabric.fail(reason)
    prefill, decode = await pair.ask(1, prompt)
    assert decode.tokens == expected.tokens
    assert (decode.end.mode, decode.end.why) == (Mode.RECOMPUTED, reason.value)
    assert (decode.end.cached_tokens, decode.end.transfer) == (0, None)
    assert prefill.tokens == expected.tokens[:1]
    await all_free(pair.prefill, pair.decode)
    exposition = pair.decode.metrics.exposition().decode()
    assert f'kvferry_engine_failed_loads_total{{reason="{reason.value}"}} 1.0' in exposition
    assert f'kvferry_engine_prompts_total{{mode="recomputed",reason="{reason.value}"}} 1.0' in exposition


async def test_fail_tells_the_reason(make_pair) -> None:
    pair = make_pair(policy=FailurePolicy.FAIL)
    pair.fabric.fail(Reason.CORRUPT)
    _, decode = await pair.ask(1, prompt_of(50))
    assert decode.tokens == []
    assert (decode.failed.status, decode.failed.code) == (502, "corrupt")
    assert "corrupt" in decode.failed.message
    await all_free(pair.prefill, pair.decode)
    pair.fabric.fail(None)
    _, decode = await pair.ask(2, prompt_of(50))
    assert decode.end.mode is Mode.TRANSFERRED


async def test_an_unknown_transfer_ends_by_its_deadline(make_pair) -> None:
    """Case 41: a key that prefill never heard of is an error, not a wait without end."""
    pair = make_pair(policy=FailurePolicy.FAIL)
    params = engines.transfer(9, "decode", deadline_ms=1000)
    decode = await engines.complete(pair.decode, prompt_of(50), kv_transfer_params=params)
    assert decode.failed.code == "deadline"
    await all_free(pair.decode)


@pytest.mark.parametrize(("policy", "mode"), [(FailurePolicy.RECOMPUTE, Mode.RECOMPUTED), (FailurePolicy.FAIL, None)])
async def test_without_a_sidecar_the_policy_holds(tiny: Path, policy: FailurePolicy, mode: Mode | None) -> None:
    engine = engines.start(tiny, failure_policy=policy)
    try:
        answer = await engines.complete(engine, prompt_of(20), kv_transfer_params=engines.transfer(1, "decode"))
        assert (answer.end.mode if answer.end else None) is mode
        assert answer.end is None or answer.end.why == Reason.NO_CONNECTOR
        assert answer.failed is None or answer.failed.code == Reason.NO_CONNECTOR
        first = await engines.complete(engine, prompt_of(20), kv_transfer_params=engines.transfer(1, "prefill"))
        assert len(first.tokens) == 8
    finally:
        engine.close(5)


async def test_a_parked_request_holds_up_nobody(make_pair) -> None:
    pair = make_pair()
    params = engines.transfer(5, "decode")
    parked = asyncio.create_task(engines.complete(pair.decode, prompt_of(30), kv_transfer_params=params))
    await until(lambda: pair.decode.loop.counts()["parked"] == 1)
    others = await asyncio.gather(*(engines.complete(pair.decode, prompt_of(length)) for length in (10, 600)))
    assert all(len(other.tokens) == 8 for other in others)
    assert not parked.done()
    prefill = {"max_tokens": 1, "kv_transfer_params": engines.transfer(5, "prefill")}
    await engines.complete(pair.prefill, prompt_of(30), **prefill)
    assert (await parked).end.mode is Mode.TRANSFERRED


async def test_clients_that_leave_give_everything_back(make_pair) -> None:
    """Case 43."""
    pair = make_pair()
    for number in range(10):
        await start_and_leave(
            pair.decode,
            prompt_of(30),
            lambda: pair.decode.loop.counts()["parked"] == 1,
            kv_transfer_params=engines.transfer(number, "decode"),
        )
        await start_and_leave(
            pair.prefill,
            prompt_of(1500),
            lambda: pair.prefill.loop.counts()["prefilling"] == 1,
            max_tokens=1,
            kv_transfer_params=engines.transfer(100 + number, "prefill"),
        )
    await all_free(pair.prefill, pair.decode)
    assert pair.prefill.agent.state().open_sends == pair.decode.agent.state().open_loads == 0
    _, decode = await pair.ask(1000, prompt_of(30))
    assert decode.end.mode is Mode.TRANSFERRED


async def test_blocks_of_an_offer_stay_until_decode_has_them(make_pair) -> None:
    pair = make_pair()
    params = engines.transfer(1, "prefill")
    await engines.complete(pair.prefill, prompt_of(100), max_tokens=1, kv_transfer_params=params)
    assert pair.prefill.loop.counts()["held"] == 1
    assert pair.prefill.pool.free == pair.prefill.pool.total - 7
    fields = {"kv_transfer_params": engines.transfer(1, "decode")}
    assert (await engines.complete(pair.decode, prompt_of(100), **fields)).end.mode is Mode.TRANSFERRED
    await all_free(pair.prefill, pair.decode)


async def test_blocks_of_an_offer_that_nobody_fetches_come_back_at_its_deadline(make_pair) -> None:
    pair = make_pair()
    params = engines.transfer(1, "prefill", deadline_ms=300)
    await engines.complete(pair.prefill, prompt_of(100), max_tokens=1, kv_transfer_params=params)
    await all_free(pair.prefill)


async def test_a_withdrawn_offer_gives_its_blocks_back_long_before_its_deadline(make_pair) -> None:
    pair = make_pair()
    params = engines.transfer(1, "prefill", deadline_ms=3_600_000)
    await engines.complete(pair.prefill, prompt_of(100), max_tokens=1, kv_transfer_params=params)
    pair.prefill.loop.withdraw("0" * 32)
    assert pair.prefill.loop.counts()["held"] == 1
    pair.prefill.loop.withdraw(params["transfer_id"])
    await all_free(pair.prefill)


async def test_an_offer_that_is_withdrawn_before_its_answer_is_not_held_either(make_pair) -> None:
    """The word that nobody will fetch it may overtake the news that the client has left."""
    pair = make_pair()
    params = engines.transfer(1, "prefill", deadline_ms=3_600_000)
    answering = asyncio.create_task(
        engines.complete(pair.prefill, prompt_of(3000), max_tokens=1, kv_transfer_params=params)
    )
    await until(lambda: pair.prefill.loop.counts()["prefilling"] == 1)
    pair.prefill.loop.withdraw(params["transfer_id"])
    assert len((await answering).tokens) == 1
    await all_free(pair.prefill)


async def test_a_client_that_leaves_with_the_end_on_its_way_gives_the_offer_back(make_pair) -> None:
    """Case 43: the answer is complete and its KV held, but nobody read the end."""
    pair = make_pair()
    params = engines.transfer(1, "prefill", deadline_ms=3_600_000)
    body = {"prompt": prompt_of(100), "max_tokens": 1, "kv_transfer_params": params}
    asked = parse(Api.COMPLETIONS, body, engines.NAME)
    events = pair.prefill.generate(asked, *await pair.prefill.prepare(asked))
    await anext(events)
    await until(lambda: pair.prefill.loop.counts()["held"] == 1)
    await events.aclose()
    await all_free(pair.prefill)


async def test_six_requests_for_a_cache_of_four_blocks(make_pair) -> None:
    """Case 25: two blocks each; those that are in go on, the others hear by their deadline that there is no room."""
    pair = make_pair(policy=FailurePolicy.FAIL, kv_blocks=4)
    fields = {"max_tokens": 9, "ignore_eos": True}

    def ask(number: int, deadline_ms: int) -> asyncio.Task[engines.Completion]:
        params = engines.transfer(number, "decode", deadline_ms=deadline_ms)
        return asyncio.create_task(engines.complete(pair.decode, prompt_of(20), kv_transfer_params=params, **fields))

    inside = [ask(number, 60_000) for number in (1, 2)]
    await until(lambda: pair.decode.loop.counts()["parked"] == 2)
    surplus = [ask(number, 300) for number in (3, 4, 5, 6)]
    for answer in await asyncio.gather(*surplus):
        assert (answer.failed.status, answer.failed.code) == (502, Reason.NO_CAPACITY)
    for number in (1, 2):
        params = engines.transfer(number, "prefill")
        await engines.complete(pair.prefill, prompt_of(20), max_tokens=1, kv_transfer_params=params)
    for answer in await asyncio.gather(*inside):
        assert (answer.end.mode, len(answer.tokens)) == (Mode.TRANSFERRED, 9)
    await all_free(pair.prefill, pair.decode)

    # and when room comes in time, all six finish
    waiting = [ask(number, 60_000) for number in range(11, 17)]
    for number in range(11, 17):
        params = engines.transfer(number, "prefill")
        await engines.complete(pair.prefill, prompt_of(20), max_tokens=1, kv_transfer_params=params)
    for answer in await asyncio.gather(*waiting):
        assert answer.end.mode is Mode.TRANSFERRED
    await all_free(pair.prefill, pair.decode)


@pytest.mark.parametrize("policy", [FailurePolicy.RECOMPUTE, FailurePolicy.FAIL])
async def test_a_full_decode_engine_does_not_wait_beyond_the_deadline(make_pair, policy: FailurePolicy) -> None:
    pair = make_pair(policy=policy, kv_blocks=20)
    big = asyncio.create_task(engines.complete(pair.decode, prompt_of(200), max_tokens=100, ignore_eos=True))
    await until(lambda: pair.decode.loop.counts()["running"] == 1)
    params = engines.transfer(1, "decode", deadline_ms=1)
    answer = await engines.complete(pair.decode, prompt_of(200), kv_transfer_params=params)
    if policy is FailurePolicy.FAIL:
        assert answer.failed.code == Reason.NO_CAPACITY
    else:
        assert (answer.end.mode, answer.end.why) == (Mode.RECOMPUTED, Reason.NO_CAPACITY)
    assert len((await big).tokens) == 100
    await all_free(pair.decode)


async def test_two_full_engines_that_wait_for_each_other_go_on_before_the_deadline(make_pair) -> None:
    pair, loop = make_pair(kv_blocks=20), asyncio.get_running_loop()

    def ask(engine: Engine, number: int, role: str, **fields: object) -> asyncio.Task[engines.Completion]:
        params = engines.transfer(number, role, deadline_ms=8000)
        return loop.create_task(engines.complete(engine, prompt_of(200), kv_transfer_params=params, **fields))

    # each cache holds one of the two prompts, and the engines got them in another order
    prefill = [ask(pair.prefill, number, "prefill", max_tokens=1) for number in (1, 2)]
    await until(lambda: pair.prefill.loop.counts()["held"] == 1)
    decode = [ask(pair.decode, number, "decode") for number in (2, 1)]
    second, first = await asyncio.gather(*decode)
    assert (second.end.mode, second.end.why) == (Mode.RECOMPUTED, Reason.NO_CAPACITY)
    assert first.end.mode is Mode.TRANSFERRED
    assert first.tokens == second.tokens
    await asyncio.gather(*prefill)
    pair.prefill.loop.withdraw(engines.transfer(2, "prefill")["transfer_id"])  # as the router does
    await all_free(pair.prefill, pair.decode)


async def test_a_request_that_cannot_be_admitted_fails_alone(make_pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = make_pair()
    monkeypatch.setattr(pair.prefill.agent, "offer", lambda *_: 1 / 0)
    params = {"max_tokens": 1, "kv_transfer_params": engines.transfer(1, "prefill")}
    assert (await engines.complete(pair.prefill, prompt_of(30), **params)).failed.status == 500
    assert len((await engines.complete(pair.prefill, prompt_of(30))).tokens) == 8
    await all_free(pair.prefill)


async def test_shutdown_fails_what_is_open(make_pair) -> None:
    pair = make_pair()
    params = engines.transfer(1, "decode")
    parked = asyncio.create_task(engines.complete(pair.decode, prompt_of(30), kv_transfer_params=params))
    await until(lambda: pair.decode.loop.counts()["parked"] == 1)
    await asyncio.to_thread(pair.decode.close, 5)
    assert (await parked).failed.status == 503


async def test_params_of_the_other_role_are_refused(make_pair) -> None:
    pair = make_pair()
    body = {"prompt": "x", "kv_transfer_params": engines.transfer(1, "prefill")}
    with pytest.raises(ValueError, match="decode engine"):
        await pair.decode.prepare(parse(Api.COMPLETIONS, body, engines.NAME))
