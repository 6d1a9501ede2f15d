"""What a client gets when an engine fails: the right text or one clear error, soon, and nobody computes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvferry_contract.config import FailurePolicy
from kvferry_runtime.router.stub import FailureKind, StubEngine, StubFailure, StubScript
from routed_stubs import LIMIT_SECONDS, MODEL, Routed, group, publish, routed, until, waits_for_kv

PROMPT = {"model": MODEL, "prompt": [1, 2, 3]}
TEXT = "t11 t12 t13 t14 "
NOBODY = "127.0.0.1:9"
"""The discard port: nothing listens there."""


def failing(kind: FailureKind, after_tokens: int = 0, status: int = 500, **script: Any) -> StubScript:
    return StubScript(failure=StubFailure(kind, after_tokens, status), **script)


async def _idle(state: Routed) -> None:
    """Every engine is free again, and the router counts nothing in flight."""
    engines = [*state.prefills, *state.decodes]
    await until(lambda: all(engine.record.open == 0 for engine in engines))

    async def router_is_idle() -> bool:
        return '"in_flight":0,' in (await state.get("/v1/state"))[1]

    await until(router_is_idle)


WAITING = StubScript(first_delay=60)
"""An engine that waits for KV that will not come."""


async def test_prefill_fails_at_transfer_whole_answer(tmp_path: Path) -> None:
    """Case 40 (a)."""
    async with routed(
        tmp_path, prefills=[failing(FailureKind.STATUS)], decodes=[WAITING], failure_policy=FailurePolicy.FAIL
    ) as state:
        status, body, _ = await state.post(PROMPT)
        await _idle(state)
        assert state.decodes[0].record.abandoned == 1
        assert await state.counted() == {'failures_total{reason="prefill_failed"}': 1}
    assert status == 500
    assert body["error"]["message"] == "scripted failure"


async def test_prefill_fails_at_transfer_before_the_first_token(tmp_path: Path) -> None:
    """Case 40 (b)."""
    async with routed(
        tmp_path, prefills=[failing(FailureKind.STATUS)], decodes=[WAITING], failure_policy=FailurePolicy.FAIL
    ) as state:
        answer_status, body, headers = await state.post({**PROMPT, "stream": True})
        await _idle(state)
        assert state.decodes[0].record.abandoned == 1
    assert answer_status == 500
    assert headers["content-type"].startswith("application/json")
    assert body["error"]["message"] == "scripted failure"


@pytest.mark.parametrize("kind", [FailureKind.EVENT, FailureKind.RESET, FailureKind.CUT])
@pytest.mark.parametrize("policy", list(FailurePolicy))
async def test_decode_fails_after_three_tokens(tmp_path: Path, policy: FailurePolicy, kind: FailureKind) -> None:
    """Case 40 (c): an error event, then the end of the stream, and both engines are free."""
    slow_prefill = StubScript(first_delay=60)
    async with routed(
        tmp_path, prefills=[slow_prefill], decodes=[failing(kind, after_tokens=3)], failure_policy=policy
    ) as state:
        answer = await state.stream({**PROMPT, "stream": True})
        await _idle(state)
        assert state.prefills[0].record.abandoned == 1
        reason = "decode_failed" if kind is FailureKind.EVENT else "decode_lost"
        assert await state.counted() == {f'failures_total{{reason="{reason}"}}': 1}
    assert answer.status == 200
    assert answer.text == "t11 t12 t13 "
    assert answer.error is not None
    assert not answer.done
    assert not answer.finish_reasons


@pytest.mark.parametrize(
    ("kind", "stream"), [(FailureKind.STATUS, False), (FailureKind.STATUS, True), (FailureKind.EVENT, True)]
)
async def test_decode_fails_before_the_first_token(tmp_path: Path, kind: FailureKind, stream: bool) -> None:
    async with routed(tmp_path, prefills=[WAITING], decodes=[failing(kind)]) as state:
        status, body, _ = await state.post({**PROMPT, "stream": stream})
        await _idle(state)
        assert state.prefills[0].record.abandoned == 1
    assert status >= 500
    assert body["error"]["message"] == "scripted failure"


@pytest.mark.parametrize("status", [400, 422])
async def test_the_clients_mistake_is_passed_on_as_it_is(tmp_path: Path, status: int) -> None:
    refusing = failing(FailureKind.STATUS, status=status)
    async with routed(tmp_path, prefills=[refusing], decodes=[refusing]) as state:
        answer_status, body, _ = await state.post(PROMPT)
        assert await state.counted() == {'failures_total{reason="engine_refused"}': 1}
    assert (answer_status, body["error"]["code"]) == (status, "scripted")


@pytest.mark.parametrize("policy", [FailurePolicy.RECOMPUTE, FailurePolicy.RETRY])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", [FailureKind.STATUS, FailureKind.RESET])
async def test_without_prefill_decode_does_it_all_and_says_so(
    tmp_path: Path, kind: FailureKind, stream: bool, policy: FailurePolicy
) -> None:
    async with routed(tmp_path, prefills=[failing(kind)], decodes=[waits_for_kv], failure_policy=policy) as state:
        if stream:
            answer = await state.stream({**PROMPT, "stream": True})
            text, headers, result = answer.text, answer.headers, answer.result
        else:
            _, body, headers = await state.post(PROMPT)
            text, result = body["choices"][0]["text"], body["kvferry"]
        first, second = state.decodes[0].record.requests
        assert "kv_transfer_params" in first
        assert "kv_transfer_params" not in second
        assert await state.counted() == {'requests_total{reason="prefill_failed"}': 1}
    assert text == TEXT
    assert (headers["x-kvferry-mode"], headers["x-kvferry-reason"]) == ("aggregated", "prefill_failed")
    assert "x-kvferry-transfer-id" not in headers
    assert (result["route_reason"], result["prefill_pod"]) == ("prefill_failed", None)


async def test_a_prefill_that_is_not_there_is_left_alone_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvferry_runtime.router.group_table.ASIDE_SECONDS", 60.0)  # the test does not see its end

    def groups(_: list[StubEngine], decodes: list[StubEngine]) -> list[Any]:
        return [group(NOBODY, "prefill"), group(decodes[0], "decode")]

    async with routed(tmp_path, prefills=[], decodes=[waits_for_kv], groups=groups) as state:
        reasons = [(await state.post(PROMPT))[2]["x-kvferry-reason"] for _ in range(2)]
        assert '"state":"aside"' in (await state.get("/v1/state"))[1]
        assert 'kvferry_router_groups{role="prefill",state="aside"} 1.0' in (await state.get("/metrics"))[1]
    assert reasons == ["prefill_failed", "no_prefill"]


async def test_prefill_failure_after_decode_spoke_changes_nothing(tmp_path: Path) -> None:
    late = failing(FailureKind.STATUS, first_delay=0.6)
    async with routed(tmp_path, prefills=[late], decodes=[StubScript(token_delay=0.25)]) as state:
        answer = await state.stream({**PROMPT, "stream": True, "stream_options": {"include_usage": True}})
        assert len(state.decodes[0].record.requests) == 1
    assert (answer.text, answer.done) == (TEXT, True)
    assert "prompt_tokens_details" not in answer.chunks[-1]["usage"]


async def test_a_silent_prefill_does_not_stop_a_decode_that_helps_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvferry_runtime.router.settings.ENGINE_ALLOWANCE_SECONDS", 0.1)
    async with routed(
        tmp_path, prefills=[WAITING], decodes=[StubScript(first_delay=0.4)], timeout_seconds=0.05
    ) as state:
        status, body, _ = await state.post(PROMPT)
        assert len(state.decodes[0].record.requests) == 1
    assert (status, body["choices"][0]["text"]) == (200, TEXT)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", ["absent", FailureKind.RESET, 503])
async def test_another_decode_group_takes_over_under_a_new_transfer_id(
    tmp_path: Path, kind: FailureKind | str | int, stream: bool
) -> None:
    broken = failing(FailureKind.STATUS, status=503) if kind == 503 else failing(FailureKind.RESET)

    def groups(prefills: list[StubEngine], decodes: list[StubEngine]) -> list[Any]:
        first = NOBODY if kind == "absent" else decodes[0]
        return [group(prefills[0], "prefill"), group(first, "decode", 0), group(decodes[1], "decode", 1)]

    async with routed(
        tmp_path, prefills=[StubScript(first_delay=0.5)], decodes=[broken, StubScript()], groups=groups
    ) as state:
        if stream:
            answer = await state.stream({**PROMPT, "stream": True})
            text, headers = answer.text, answer.headers
        else:
            _, body, headers = await state.post(PROMPT)
            text = body["choices"][0]["text"]
        await _idle(state)
        transfers = [body["kv_transfer_params"]["transfer_id"] for body in state.prefills[0].record.requests]
        assert await state.counted() == {"decode_retries_total": 1, 'requests_total{reason="disaggregated"}': 1}
    assert text == TEXT
    assert len(set(transfers)) == len(transfers)
    assert transfers[-1] == headers["x-kvferry-transfer-id"]
    assert headers["x-kvferry-mode"] == "disaggregated"


@pytest.mark.parametrize(
    ("policy", "decodes"), [(FailurePolicy.FAIL, 2), (FailurePolicy.RECOMPUTE, 1), (FailurePolicy.RETRY, 3)]
)
async def test_decode_that_cannot_be_reached_is_one_error(tmp_path: Path, policy: FailurePolicy, decodes: int) -> None:
    def groups(prefills: list[StubEngine], _: list[StubEngine]) -> list[Any]:
        dead = [group(f"127.0.0.{2 + number}:9", "decode", number) for number in range(decodes)]
        return [group(prefills[0], "prefill"), *dead]

    async with routed(tmp_path, prefills=[WAITING], decodes=[], groups=groups, failure_policy=policy) as state:
        status, body, _ = await state.post(PROMPT)
        await _idle(state)
        assert (await state.counted())['failures_total{reason="decode_unreachable"}'] == 1
    assert (status, body["error"]["code"]) == (502, "decode_unreachable")


async def test_no_groups_at_all_is_503_and_worth_another_try(tmp_path: Path) -> None:
    async with routed(tmp_path, decodes=[]) as state:
        status, body, headers = await state.post(PROMPT)
        assert (await state.get("/readyz"))[0] == 503
        assert (await state.get("/healthz"))[0] == 200
    assert (status, body["error"]["code"], headers["retry-after"]) == (503, "no_groups", "1")


async def test_without_a_pair_the_policy_fail_refuses(tmp_path: Path) -> None:
    async with routed(tmp_path, prefills=[], failure_policy=FailurePolicy.FAIL) as state:
        status, body, _ = await state.post(PROMPT)
        assert not state.decodes[0].record.requests
    assert (status, body["error"]["code"]) == (503, "no_groups")
    assert "failure policy is Fail" in body["error"]["message"]


@pytest.mark.parametrize("order", ["prefill first", "decode first", "decode far ahead"])
@pytest.mark.parametrize("stream", [True, False])
async def test_two_different_first_tokens_are_never_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool, order: str
) -> None:
    monkeypatch.setattr("kvferry_runtime.router.exchange.LATE_PREFILL_SECONDS", LIMIT_SECONDS)
    prefill_delay, decode_delay = {"prefill first": (0, 0.05), "decode first": (0.05, 0), "decode far ahead": (0.2, 0)}[
        order
    ]
    wrong = StubScript(tokens=(99,), first_delay=prefill_delay)
    decode = StubScript(first_delay=decode_delay, token_delay=0.02 if order == "decode first" else 0)
    async with routed(tmp_path, prefills=[wrong], decodes=[decode]) as state:
        if stream:
            answer = await state.stream({**PROMPT, "stream": True})
            error = answer.error
            assert not answer.done
            assert not answer.finish_reasons
        else:
            status, body, _ = await state.post(PROMPT)
            error = body.get("error")
            assert status == 502
        assert await state.counted() == {'failures_total{reason="token_mismatch"}': 1, "token_mismatch_total": 1}
    assert error is not None
    assert error["code"] == "token_mismatch"


async def test_a_gap_in_decodes_tokens_is_never_an_answer(tmp_path: Path) -> None:
    async with routed(tmp_path, decodes=[StubScript(begin_at=2)]) as state:
        status, body, _ = await state.post(PROMPT)
        answer = await state.stream({**PROMPT, "stream": True})
    assert (status, body["error"]["code"]) == (502, "bad_answer")
    assert answer.error is not None
    assert answer.error["code"] == "bad_answer"


async def test_an_engine_that_falls_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry_runtime.router.settings.ENGINE_ALLOWANCE_SECONDS", 1.5)
    silent = failing(FailureKind.HANG, after_tokens=2)
    async with routed(tmp_path, decodes=[silent], timeout_seconds=0.05) as state:
        answer = await state.stream({**PROMPT, "stream": True})
        await _idle(state)
        assert await state.counted() == {'failures_total{reason="deadline"}': 1}
    assert answer.text == "t11 t12 "
    assert answer.error is not None


async def test_recovers_when_the_engine_is_back(tmp_path: Path) -> None:
    async with routed(tmp_path) as state:
        decode = state.decodes[0]
        await decode.__aexit__()
        broken, _, _ = await state.post(PROMPT)
        await decode.__aenter__()
        publish(state.endpoints, [group(state.prefills[0], "prefill"), group(decode, "decode")])
        healed, body, _ = await state.post(PROMPT)
    assert (broken, healed, body["choices"][0]["text"]) == (502, 200, TEXT)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("decode", "withdrawn"),
    [
        (StubScript(result={"mode": "transferred"}), False),
        (StubScript(), False),
        (StubScript(result={"mode": "recomputed", "reason": "sidecar_lost"}), True),
        (failing(FailureKind.STATUS), True),
    ],
    ids=["transferred", "says nothing", "recomputed", "failed"],
)
async def test_what_prefill_keeps_for_decode_in_vain_is_withdrawn(
    tmp_path: Path, decode: StubScript, withdrawn: bool, stream: bool
) -> None:
    async with routed(tmp_path, decodes=[decode]) as state:
        await (state.stream({**PROMPT, "stream": True}) if stream else state.post(PROMPT))
        await _idle(state)
    # the router has left by now, and with it all that it had to say
    prefill = state.prefills[0].record
    assert prefill.withdrawn == [body["kv_transfer_params"]["transfer_id"] for body in prefill.requests] * withdrawn
