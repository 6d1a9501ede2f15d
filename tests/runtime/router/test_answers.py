"""What a client gets when all goes well: tokens once and in order, one usage, one account of what happened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvferry_runtime.router.stub import FailureKind, StubFailure, StubScript
from routed_stubs import LIMIT_SECONDS, MODEL, routed

PROMPT = {"model": MODEL, "prompt": [1, 2, 3]}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
TEXT = "t11 t12 t13 t14 "
TRANSFERRED = {"mode": "transferred", "reason": "ok", "transfer": {"id": "x", "chunks": 3}}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late prefill is on this machine, its account of the prompt is waited for."""
    monkeypatch.setattr("kvferry_runtime.router.exchange.LATE_PREFILL_SECONDS", LIMIT_SECONDS)


ORDERS = {
    "together": (0.0, 0.0),
    "prefill first": (0.0, 0.05),
    "decode first": (0.05, 0.0),
}


def _scripts(order: str, base: StubScript) -> dict[str, tuple[StubScript, ...]]:
    prefill_delay, decode_delay = ORDERS[order]
    return {
        "prefills": (replace(base, first_delay=prefill_delay),),
        "decodes": (replace(base, first_delay=decode_delay, result=TRANSFERRED),),
    }


@pytest.mark.parametrize("chunk_tokens", [1, 3])
@pytest.mark.parametrize("begin_at", [0, 1])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_each_token_comes_once_whichever_engine_is_first(
    tmp_path: Path, path: str, order: str, begin_at: int, chunk_tokens: int
) -> None:
    scripts = _scripts(order, StubScript(begin_at=begin_at, chunk_tokens=chunk_tokens))
    body = PROMPT if path == "/v1/completions" else CHAT
    async with routed(tmp_path, **scripts) as state:
        streamed = await state.stream({**body, "stream": True, "return_token_ids": True}, path)
        status, whole, headers = await state.post({**body, "return_token_ids": True}, path)
    assert streamed.text == TEXT
    assert streamed.token_ids == [11, 12, 13, 14]
    assert streamed.finish_reasons == ["stop"]
    assert streamed.done
    [choice] = whole["choices"]
    assert status == 200
    assert (choice.get("text") or choice["message"]["content"]) == TEXT
    assert (choice["token_ids"], choice["token_index"]) == ([11, 12, 13, 14], 0)
    for result, sent in ((streamed.result, streamed.headers), (whole["kvferry"], headers)):
        assert result["mode"] == "transferred"
        assert (result["prefill_pod"], result["decode_pod"]) == ("small-prefill-0", "small-decode-0")
        assert (sent["x-kvferry-mode"], sent["x-kvferry-reason"]) == ("disaggregated", "disaggregated")
        assert len(sent["x-kvferry-transfer-id"]) == 32


@pytest.mark.parametrize("begin_at", [0, 1])
@pytest.mark.parametrize("stream", [True, False])
async def test_usage_is_counted_once_and_the_prompt_is_prefills(tmp_path: Path, stream: bool, begin_at: int) -> None:
    """Case 39."""
    tokens = tuple(range(100, 110))
    prefill = StubScript(tokens=tokens, prompt_tokens=271, cached_tokens=0)
    decode = StubScript(tokens=tokens, prompt_tokens=271, cached_tokens=271, begin_at=begin_at, finish_reason="stop")
    async with routed(tmp_path, prefills=[prefill], decodes=[decode]) as state:
        if stream:
            answer = await state.stream({**PROMPT, "stream": True, "stream_options": {"include_usage": True}})
            [usage] = [chunk["usage"] for chunk in answer.chunks if "usage" in chunk]
            finish_reasons = answer.finish_reasons
        else:
            _, body, _ = await state.post(PROMPT)
            usage, finish_reasons = body["usage"], [body["choices"][0]["finish_reason"]]
    assert usage == {
        "prompt_tokens": 271,
        "completion_tokens": 10,
        "total_tokens": 281,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert finish_reasons == ["stop"]


async def test_the_first_token_of_prefill_does_not_wait_for_decode(tmp_path: Path) -> None:
    stuck = StubScript(failure=StubFailure(FailureKind.HANG))
    async with (
        routed(tmp_path, decodes=[stuck]) as state,
        state.session.post(state.url("/v1/completions"), json={**PROMPT, "stream": True}) as response,
    ):
        first = await response.content.readuntil(b"\n\n")
    assert b'"text":"t11 "' in first


@pytest.mark.parametrize(
    ("texts", "stop"),
    [
        pytest.param({11: "\ufffd", 12: "é", 13: "b", 14: "c"}, None, id="half a character"),
        pytest.param({11: "EN", 12: "D of it", 13: "b", 14: "c"}, "END", id="may begin a stop string"),
    ],
)
async def test_a_first_token_that_decode_may_still_change_is_left_to_decode(
    tmp_path: Path, texts: dict[int, str], stop: str | None
) -> None:
    decode_texts = {**texts, 11: ""}
    async with routed(
        tmp_path,
        prefills=[StubScript(texts=texts.__getitem__)],
        decodes=[StubScript(texts=decode_texts.__getitem__, first_delay=0.05)],
    ) as state:
        answer = await state.stream({**PROMPT, "stream": True, "stop": stop, "return_token_ids": True})
    assert answer.text == "".join(decode_texts.values())
    assert answer.token_ids == [11, 12, 13, 14]


async def test_text_that_decode_hands_out_later_than_prefill_is_not_repeated(tmp_path: Path) -> None:
    late = {11: "", 12: "t11 t12 ", 13: "t13 ", 14: "t14 "}
    async with routed(tmp_path, decodes=[StubScript(texts=late.__getitem__, first_delay=0.05)]) as state:
        answer = await state.stream({**PROMPT, "stream": True})
    assert answer.text == TEXT


@pytest.mark.parametrize("stream", [True, False])
async def test_engines_that_do_not_number_tokens_are_served_by_decodes_answer_alone(
    tmp_path: Path, stream: bool
) -> None:
    foreign = StubScript(numbered=False, prompt_tokens=5)
    async with routed(tmp_path, prefills=[foreign], decodes=[replace(foreign, first_delay=0.05)]) as state:
        if stream:
            answer = await state.stream({**PROMPT, "stream": True, "stream_options": {"include_usage": True}})
            text, usage = answer.text, answer.chunks[-1]["usage"]
        else:
            _, body, _ = await state.post(PROMPT)
            text, usage = body["choices"][0]["text"], body["usage"]
    assert text == TEXT
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 4)


async def test_one_token_is_a_whole_answer(tmp_path: Path) -> None:
    script = StubScript(finish_reason="length")
    async with routed(tmp_path, prefills=[script], decodes=[script]) as state:
        answer = await state.stream({**PROMPT, "stream": True, "max_tokens": 1, "return_token_ids": True})
    assert (answer.token_ids, answer.finish_reasons, answer.done) == ([11], ["length"], True)


async def test_clients_see_tokens_and_usage_only_when_they_ask(tmp_path: Path) -> None:
    async with routed(tmp_path) as state:
        answer = await state.stream({**PROMPT, "stream": True})
        _, body, _ = await state.post(PROMPT)
    assert all(chunk["choices"] for chunk in answer.chunks), "no chunk without a choice unless usage was asked for"
    assert not any("usage" in chunk for chunk in answer.chunks)
    choices = [chunk["choices"][0] for chunk in answer.chunks] + body["choices"]
    assert not any({"token_ids", "token_index"} & set(choice) for choice in choices)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_all_chunks_have_one_id_and_the_served_name(tmp_path: Path, path: str) -> None:
    body = PROMPT if path == "/v1/completions" else CHAT
    async with routed(tmp_path) as state:
        answer = await state.stream({**body, "stream": True}, path)
    assert len({chunk["id"] for chunk in answer.chunks}) == 1
    assert {chunk["model"] for chunk in answer.chunks} == {MODEL}
    if path == "/v1/chat/completions":
        roles = [chunk["choices"][0]["delta"].get("role") for chunk in answer.chunks]
        assert roles == ["assistant"] + [None] * (len(roles) - 1)


async def test_engines_get_the_same_prompt_seed_and_transfer(tmp_path: Path) -> None:
    body = {**PROMPT, "max_tokens": 7, "min_tokens": 3, "temperature": 0.7, "logit_bias": {"5": 1.5}}
    async with routed(tmp_path, timeout_seconds=12) as state:
        await state.post(body)
        [prefill], [decode] = state.prefills[0].record.requests, state.decodes[0].record.requests
    transfer = decode.pop("kv_transfer_params")
    assert prefill.pop("kv_transfer_params") == {**transfer, "role": "prefill", "peers": []}
    assert (transfer["role"], transfer["peers"], transfer["deadline_ms"]) == ("decode", ["127.0.0.1:7400"], 12000)
    assert (prefill.pop("max_tokens"), decode.pop("max_tokens"), decode.pop("min_tokens")) == (1, 7, 3)
    assert prefill.pop("stream") is False
    assert prefill == decode
    assert isinstance(decode["seed"], int)
    assert decode["logit_bias"] == {"5": 1.5}
