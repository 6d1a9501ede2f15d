"""The engine as a client sees it."""

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

import reference_engines as engines
import tiny_model
from kvferry_runtime.engine.reference import http as engine_http
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.http import EngineServer
from reference_engines import until


class Client:
    """A running server, its engine, and how to talk to it."""

    def __init__(self, server: EngineServer, engine: Engine, url: str, session: ClientSession) -> None:
        self.server, self.engine, self.url, self.session = server, engine, url, session

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.text()

    async def post(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=io.BytesIO(data)) as response:
            return response.status, await response.json()

    async def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        async with self.session.post(self.url + path, json={**body, "stream": True}) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            lines = [line.decode().strip() async for line in response.content]
        events = [line.removeprefix("data: ") for line in lines if line]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]


@pytest.fixture
async def client(tiny: Path) -> AsyncIterator[Client]:
    engine = engines.start(tiny)
    server = EngineServer(engines.NAME, "aggregated")
    runner = web.AppRunner(server.application(), auto_decompress=False, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with ClientSession() as session:
        yield Client(server, engine, f"http://127.0.0.1:{port}", session)
    await asyncio.to_thread(engine.close, 5)
    await runner.cleanup()


@pytest.fixture
async def ready(client: Client) -> Client:
    client.server.serve(client.engine)
    return client


BODY = {"model": engines.NAME, "prompt": "a ferry", "max_tokens": 6, "temperature": 0}


async def test_a_body_that_does_not_come_is_given_up(ready: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_http, "BODY_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection(*ready.url.removeprefix("http://").split(":"))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: engine\r\nContent-Length: 100\r\n\r\n{")
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 30)
    writer.close()


async def test_a_completion(ready: Client) -> None:
    status, body = await ready.post("/v1/completions", {**BODY, "return_token_ids": True})
    assert status == 200
    assert (body["object"], body["model"]) == ("text_completion", engines.NAME)
    choice = body["choices"][0]
    assert (len(choice["token_ids"]), choice["token_index"], choice["finish_reason"]) == (6, 0, "length")
    assert choice["text"] == bytes(choice["token_ids"]).decode(errors="replace")
    assert body["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 6,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert body["kvferry"] == {"mode": "local", "reason": "", "transfer": None}
    _, same = await ready.post("/v1/completions", {**BODY, "prompt": list(b"a ferry")})
    assert same["choices"][0]["text"] == choice["text"]
    assert "token_ids" not in same["choices"][0]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_says_the_same_as_the_whole(ready: Client, path: str) -> None:
    body = {**BODY, "messages": [{"role": "user", "content": "hello"}], "return_token_ids": True}
    _, whole = await ready.post(path, body)
    chunks = await ready.stream(path, {**body, "stream_options": {"include_usage": True}})
    assert len({chunk["id"] for chunk in chunks}) == 1
    *tokens, finish, usage = chunks
    assert [chunk["choices"][0]["token_index"] for chunk in tokens] == list(range(6))
    assert [chunk["choices"][0]["token_ids"][0] for chunk in tokens] == whole["choices"][0]["token_ids"]
    assert finish["choices"][0]["finish_reason"] == "length"
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert usage["kvferry"] == whole["kvferry"]
    if path == "/v1/completions":
        assert "".join(chunk["choices"][0]["text"] for chunk in tokens) == whole["choices"][0]["text"]
    else:
        deltas = [chunk["choices"][0]["delta"] for chunk in tokens]
        assert deltas[0]["role"] == "assistant"
        assert "".join(delta["content"] for delta in deltas) == whole["choices"][0]["message"]["content"]
        assert (whole["object"], finish["object"]) == ("chat.completion", "chat.completion.chunk")


async def test_without_usage_the_last_chunk_says_how_it_went(ready: Client) -> None:
    chunks = await ready.stream("/v1/completions", BODY)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["kvferry"]["mode"] == "local"
    assert all("usage" not in chunk and "token_ids" not in chunk["choices"][0] for chunk in chunks)


@pytest.mark.parametrize(("length", "room"), [(10, 16), (4090, 6)])
async def test_without_max_tokens_a_default_or_what_fits_is_generated(ready: Client, length: int, room: int) -> None:
    _, body = await ready.post("/v1/completions", {"prompt": [1] * length, "ignore_eos": True})
    assert body["usage"]["completion_tokens"] == room


async def test_a_stop_string_ends_the_answer_before_it(ready: Client) -> None:
    _, whole = await ready.post("/v1/completions", {**BODY, "max_tokens": 30, "ignore_eos": True})
    text = whole["choices"][0]["text"]
    stop = text[8:10]
    _, stopped = await ready.post("/v1/completions", {**BODY, "max_tokens": 30, "ignore_eos": True, "stop": [stop]})
    assert stopped["choices"][0] == whole["choices"][0] | {"text": text[: text.find(stop)], "finish_reason": "stop"}
    assert ready.engine.pool.free == ready.engine.pool.total


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/v1/completions", b"{not json", 400, "not JSON"),
        ("/v1/completions", b"[" * 100_000, 400, "not JSON"),
        ("/v1/completions", {**BODY, "prompt": "\ud800"}, 400, "prompt has half of a surrogate pair"),
        ("/v1/completions", {**BODY, "model": "other"}, 404, "'other'"),
        ("/v1/completions", {**BODY, "n": 3}, 400, "n 3"),
        ("/v1/completions", {**BODY, "prompt": [1, tiny_model.VOCABULARY]}, 400, "vocabulary"),
        ("/v1/completions", {**BODY, "max_tokens": 4096}, 400, "the model takes 4096"),
        ("/v1/completions", {"prompt": [1] * 4096}, 400, "do not fit"),
        ("/v1/completions", {**BODY, "kv_transfer_params": {"transfer_id": 1}}, 400, "kv_transfer_params"),
        ("/v1/chat/completions", {"messages": [{"role": "pirate", "content": "x"}]}, 400, "unknown role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "\udc00"}]}, 400, "messages[0].content"),
        ("/v1/nothing", BODY, 404, "Not Found"),
    ],
)
async def test_errors_have_openais_shape(ready: Client, path: str, body: Any, status: int, word: str) -> None:
    found, answer = await ready.post(path, body)
    assert found == status
    assert word in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "code"}
    assert ready.engine.loop.idle()


async def test_a_compressed_body_is_refused_unopened(ready: Client) -> None:
    """Case 47: it could unpack to all the memory there is."""
    for data in (b"no gzip", gzip.compress(json.dumps(BODY).encode())):
        async with ready.session.post(
            ready.url + "/v1/completions", data=data, headers={"Content-Encoding": "gzip"}
        ) as response:
            error = (await response.json())["error"]
            assert (response.status, error["type"]) == (415, "invalid_request_error")
            assert "'gzip'" in error["message"]


async def test_a_body_that_breaks_off_is_the_clients_mistake(ready: Client) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(ready.url.rsplit(":", 1)[1]))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcdezz\r\n")
    assert b" 400 " in await asyncio.wait_for(reader.readline(), 30)
    writer.close()


async def test_a_body_that_is_too_large_is_refused(ready: Client) -> None:
    found, answer = await ready.post("/v1/completions", b" " * (engine_http.MAX_BODY_BYTES + 1))
    assert (found, answer["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_gives_its_blocks_back(ready: Client, stream: bool) -> None:
    body = {**BODY, "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    task = asyncio.create_task(ready.post("/v1/completions", body))
    await until(lambda: ready.engine.loop.counts()["running"] == 1)
    task.cancel()
    await until(lambda: ready.engine.pool.free == ready.engine.pool.total)
    assert b'requests_total{outcome="cancelled"} 1.0' in ready.engine.metrics.exposition()


async def test_too_many_waiting_requests_are_refused(ready: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry_runtime.engine.reference.loop.MAX_WAITING", 0)
    status, answer = await ready.post("/v1/completions", BODY)
    assert (status, answer["error"]["type"]) == (503, "unavailable")
    assert b'requests_total{outcome="refused"} 1.0' in ready.engine.metrics.exposition()


async def test_a_pass_that_fails_is_an_error_and_the_next_request_is_served(
    ready: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("kvferry_runtime.engine.reference.executor.sample", lambda *_: 1 / 0)
        status, answer = await ready.post("/v1/completions", BODY)
        assert (status, answer["error"]["code"]) == (500, "internal")
    status, _ = await ready.post("/v1/completions", BODY)
    assert status == 200
    assert ready.engine.pool.free == ready.engine.pool.total


async def test_health_and_readiness_while_loading_serving_and_draining(client: Client) -> None:
    assert (await client.get("/healthz"))[0] == 200
    assert await client.get("/readyz") == (503, "the model is loading\n")
    assert (await client.post("/v1/completions", BODY))[0] == 503
    assert json.loads((await client.get("/v1/state"))[1])["loading"]
    client.server.serve(client.engine)
    assert (await client.get("/readyz"))[0] == 200
    assert (await client.post("/v1/completions", BODY))[0] == 200
    client.server.drain()
    assert await client.get("/readyz") == (503, "draining\n")
    assert (await client.get("/healthz"))[0] == 200
    assert (await client.post("/v1/completions", BODY))[0] == 503


async def test_an_engine_whose_loop_ended_is_unhealthy(ready: Client) -> None:
    await asyncio.to_thread(ready.engine.loop.stop, 5)
    assert (await ready.get("/healthz"))[0] == 503
    assert (await ready.get("/readyz"))[0] == 503


async def test_state_models_and_metrics(ready: Client) -> None:
    state = json.loads((await ready.get("/v1/state"))[1])
    assert state["blocks"] == {"total": 400, "free": 400}
    assert state["requests"] == {"waiting": 0, "parked": 0, "prefilling": 0, "running": 0, "held": 0}
    assert (state["role"], state["draining"], state["agent"]) == ("aggregated", False, None)
    models = json.loads((await ready.get("/v1/models"))[1])
    assert [(model["id"], model["max_model_len"]) for model in models["data"]] == [(engines.NAME, 4096)]
    await ready.post("/v1/completions", BODY)
    metrics = (await ready.get("/metrics"))[1]
    for line in (
        'kvferry_engine_requests_total{outcome="length"} 1.0',
        'kvferry_engine_prompts_total{mode="recomputed",reason="peer_lost"} 0.0',
        'kvferry_engine_open_requests{stage="parked"} 0.0',
        "kvferry_engine_kv_blocks_free 400.0",
        "kvferry_engine_generated_tokens_total 6.0",
    ):
        assert line in metrics
