"""What clients may do and may not: leaving, stalling, headers, limits, malformed bodies."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvferry_runtime.router.stub import FailureKind, StubFailure, StubScript
from routed_stubs import LIMIT_SECONDS, MODEL, Routed, routed, until

PROMPT = {"model": MODEL, "prompt": [1, 2, 3]}
HANG = StubFailure(FailureKind.HANG)


async def _raw(state: Routed, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which the request was sent and nothing read."""
    reader, writer = await asyncio.open_connection(*state.router.address.split(":"))
    data = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: router\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        pytest.param(StubScript(first_delay=60), StubScript(first_delay=60), id="both at work"),
        pytest.param(StubScript(), StubScript(first_delay=60), id="waiting for decode"),
        pytest.param(StubScript(), StubScript(failure=StubFailure(FailureKind.HANG, 2)), id="in the stream"),
    ],
)
async def test_a_client_that_leaves_frees_both_sides(
    tmp_path: Path, prefill: StubScript, decode: StubScript, stream: bool
) -> None:
    """Case 43."""
    async with routed(tmp_path, prefills=[prefill], decodes=[decode]) as state:
        engines = [*state.prefills, *state.decodes]
        writers = [(await _raw(state, {**PROMPT, "stream": stream}))[1] for _ in range(20)]
        await until(lambda: all(len(engine.record.requests) == 20 for engine in engines))
        for writer in writers:
            writer.close()
        await until(lambda: all(engine.record.open == 0 for engine in engines))
        assert state.decodes[0].record.abandoned == 20

        async def counted() -> bool:
            return await state.counted() == {'failures_total{reason="client_gone"}': 20}

        await until(counted)
        state.prefills[0].script = state.decodes[0].script = StubScript()
        assert (await state.post(PROMPT))[0] == 200


async def test_a_client_that_stops_reading_is_dropped_and_stops_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 MB wait to be sent: were they buffered, the engine would finish."""
    monkeypatch.setattr("kvferry_runtime.router.reply.WRITE_SECONDS", 0.2)
    long = StubScript(tokens=tuple(range(1000)), texts=lambda token: "x" * 60_000)
    async with routed(tmp_path, decodes=[long], prefills=[StubScript(tokens=(0,), first_delay=60)]) as state:
        _, writer = await _raw(state, {**PROMPT, "stream": True})

        async def counted() -> bool:
            return await state.counted() == {'failures_total{reason="client_stalled"}': 1}

        try:
            await until(lambda: state.decodes[0].record.abandoned == state.prefills[0].record.abandoned == 1)
            await until(counted)
        finally:
            writer.close()


async def test_nothing_a_client_sends_chooses_a_peer(tmp_path: Path) -> None:
    forged = {
        "kv_transfer_params": {"transfer_id": "0" * 32, "role": "decode", "peers": ["10.0.0.1:7400"]},
        "kvferry": {"mode": "transferred"},
    }
    headers = {
        "Authorization": "Bearer secret",
        "Cookie": "a=b",
        "X-Forwarded-For": "10.0.0.1",
        "x-kvferry-transfer-id": "0" * 32,
        "x-prefiller-host-port": "10.0.0.1:8000",
        "x-request-id": "call-17",
    }
    async with routed(tmp_path) as state:
        _, _, answered = await state.post({**PROMPT, **forged}, headers=headers)
        for engine in (*state.prefills, *state.decodes):
            [seen] = engine.record.headers
            assert not {name.lower() for name in headers} - {"x-request-id"} & set(seen)
            assert seen["x-request-id"] == "call-17"
            [body] = engine.record.requests
            assert body["kv_transfer_params"]["transfer_id"] == answered["x-kvferry-transfer-id"] != "0" * 32
            assert body["kv_transfer_params"]["peers"] in ([], ["127.0.0.1:7400"])
            assert "kvferry" not in body
    assert answered["x-request-id"] == "call-17"


async def test_a_request_id_that_cannot_stand_in_a_log_is_replaced(tmp_path: Path) -> None:
    async with routed(tmp_path) as state:
        _, _, answered = await state.post(PROMPT, headers={"x-request-id": "a" * 500})
    assert len(answered["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "cannot be read"),
        (b'"text"', 400, "cannot be read"),
        (b"\xff", 400, "cannot be read"),
        (b'{"prompt": ' + b"[" * 100_000, 400, "cannot be read"),
        ({"model": MODEL}, 400, "prompt is missing"),
        ({"model": MODEL, "prompt": ""}, 400, "prompt is missing"),
        ({"model": MODEL, "prompt": []}, 400, "prompt is missing"),
        ({"model": MODEL, "prompt": [[1], [2]]}, 400, "2 prompts"),
        ({"model": MODEL, "prompt": "a", "n": 2}, 400, "n 2"),
        ({"model": MODEL, "prompt": "a", "best_of": 4}, 400, "best_of 4"),
        ({"model": MODEL, "prompt": "a", "max_tokens": 0}, 400, "max_tokens 0"),
        ({"model": MODEL, "prompt": "a", "stream": "yes"}, 400, "stream"),
        ({"model": MODEL, "prompt": "a", "echo": True}, 400, "echo"),
        ({"model": "other", "prompt": "a"}, 404, "'other'"),
    ],
)
async def test_bad_bodies_are_refused_with_a_reason(
    tmp_path: Path, body: dict[str, Any] | bytes, status: int, said: str
) -> None:
    async with routed(tmp_path) as state:
        answered, error, _ = await state.post(body)
        assert await state.counted() == {'failures_total{reason="bad_request"}': 1}
        assert not state.decodes[0].record.requests
    assert answered == status
    assert said in error["error"]["message"]
    assert error["error"]["type"] == "invalid_request_error"


async def test_a_compressed_body_is_refused_unopened(tmp_path: Path) -> None:
    """Case 47: it could unpack to all the memory there is."""
    async with routed(tmp_path) as state:
        for body in (b"no gzip", gzip.compress(json.dumps(PROMPT).encode())):
            status, error, _ = await state.post(body, headers={"Content-Encoding": "gzip"})
            assert (status, error["error"]["type"]) == (415, "invalid_request_error")
            assert "'gzip'" in error["error"]["message"]
        assert await state.counted() == {'failures_total{reason="bad_request"}': 2}


async def test_one_prompt_in_a_list_and_no_model_are_fine(tmp_path: Path) -> None:
    async with routed(tmp_path) as state:
        for prompt in (["text"], [[1, 2]], "text"):
            assert (await state.post({"prompt": prompt}))[0] == 200
        assert [body["prompt"] for body in state.decodes[0].record.requests] == ["text", [1, 2], "text"]
        assert {body["model"] for body in state.decodes[0].record.requests} == {MODEL}


async def test_a_body_above_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry_runtime.router.server.MAX_BODY_BYTES", 1000)
    async with routed(tmp_path) as state:
        status, error, _ = await state.post({**PROMPT, "prompt": "x" * 2000})
    assert status == 413
    assert "1000 bytes" in error["error"]["message"]


async def test_a_body_that_does_not_come_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry_runtime.router.server.BODY_SECONDS", 0.1)
    async with routed(tmp_path) as state:
        reader, writer = await asyncio.open_connection(*state.router.address.split(":"))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: router\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in await asyncio.wait_for(reader.readline(), LIMIT_SECONDS)
        writer.close()


async def test_more_requests_than_the_router_carries_are_refused(tmp_path: Path) -> None:
    busy = StubScript(first_delay=60)
    async with routed(tmp_path, prefills=[busy], decodes=[busy], max_in_flight=2) as state:
        writers = [(await _raw(state, PROMPT))[1] for _ in range(2)]
        await until(lambda: len(state.decodes[0].record.requests) == 2)
        status, error, headers = await state.post(PROMPT)
        for writer in writers:
            writer.close()
    assert (status, error["error"]["code"], headers["retry-after"]) == (503, "overloaded", "1")


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/completions", 405), ("POST", "/v1/none", 404)])
async def test_unknown_paths_and_methods_answer_in_json(tmp_path: Path, method: str, path: str, status: int) -> None:
    async with routed(tmp_path) as state, state.session.request(method, state.url(path)) as response:
        assert response.status == status
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_the_model_is_listed(tmp_path: Path) -> None:
    async with routed(tmp_path) as state:
        status, text = await state.get("/v1/models")
    assert status == 200
    assert [model["id"] for model in json.loads(text)["data"]] == [MODEL]
