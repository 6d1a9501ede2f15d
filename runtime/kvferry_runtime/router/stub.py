"""An engine that computes nothing: scripted answers, delays and failures, for tests and for the router's load figure.

Same HTTP shape as the reference engine: `token_ids` and `token_index` in each choice, usage and the `kvferry` result in
the last chunk or the body.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn, Self

import msgspec
from aiohttp import web

from kvferry_contract.transfer import FIELD, RESULT_FIELD
from kvferry_runtime.router import sse
from kvferry_runtime.router.openai import MAX_BODY_BYTES, Api

Json = dict[str, Any]
_encoder = msgspec.json.Encoder()


class FailureKind(StrEnum):
    """STATUS: an HTTP error instead of an answer (before the stream begins). EVENT: an error event in the stream.

    RESET: the connection is cut. CUT: the stream ends without its end. HANG: nothing more comes.
    """

    STATUS = "status"
    EVENT = "event"
    RESET = "reset"
    CUT = "cut"
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class StubFailure:
    """Fail after `after_tokens` tokens were sent. status, error: for STATUS; error is its `error` object."""

    kind: FailureKind
    after_tokens: int = 0
    status: int = 500
    error: Json = field(
        default_factory=lambda: {"message": "scripted failure", "type": "server_error", "code": "scripted"}
    )


@dataclass(slots=True)
class StubScript:
    """What the engine answers; may be changed while it runs.

    tokens: ids of the completion, the prefill engine answers with the first. texts: text of an id (default `t<id> `).
    begin_at: index of the first token that decode sends (1: it does not repeat prefill's). numbered: send token_index.
    chunk_tokens: tokens in one chunk. Delays in seconds.
    """

    tokens: tuple[int, ...] = (11, 12, 13, 14)
    texts: Callable[[int], str] = lambda token: f"t{token} "
    prompt_tokens: int = 8
    cached_tokens: int = 0
    finish_reason: str = "stop"
    begin_at: int = 0
    numbered: bool = True
    chunk_tokens: int = 1
    first_delay: float = 0.0
    token_delay: float = 0.0
    failure: StubFailure | None = None
    result: Json | None = None


@dataclass(slots=True)
class StubRecord:
    """What happened at the engine. open: requests now; abandoned: those whose client left early; withdrawn: ids."""

    requests: list[Json] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    open: int = 0
    abandoned: int = 0
    finished: int = 0
    withdrawn: list[str] = field(default_factory=list)


class StubEngine:
    """A stub on a real socket; `async with` starts and stops it. keep: remember the requests (off for load)."""

    def __init__(self, script: StubScript | None = None, *, host: str = "127.0.0.1", port: int = 0, keep: bool = True):
        self.script = script or StubScript()
        self.record = StubRecord()
        self._host = host
        self._port = port
        self._keep = keep
        self._runner: web.AppRunner | None = None
        self.address = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes([web.post(api.value, self._handle) for api in Api])
        app.router.add_delete("/v1/transfers/{id}", self._withdraw)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        host, port = self._runner.addresses[0][:2]
        self.address, self._port = f"{host}:{port}", port
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _withdraw(self, request: web.Request) -> web.Response:
        self.record.withdrawn.append(request.match_info["id"])
        return web.Response(status=204)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body: Json = msgspec.json.decode(await request.read())
        if self._keep:
            self.record.requests.append(body)
            self.record.headers.append({key.lower(): value for key, value in request.headers.items()})
        self.record.open += 1
        try:
            response = await _StubAnswer(self.script, Api(request.path), body, request).send()
        except asyncio.CancelledError:
            self.record.abandoned += 1
            raise
        else:
            self.record.finished += 1
            return response
        finally:
            self.record.open -= 1


class _StubAnswer:
    """One answer of a stub."""

    def __init__(self, script: StubScript, api: Api, body: Json, request: web.Request) -> None:
        self._script = script
        self._api = api
        self._body = body
        self._request = request
        params = body.get(FIELD)
        self._prefill = isinstance(params, dict) and params.get("role") == "prefill"
        self._tokens = script.tokens[:1] if self._prefill else script.tokens[: body.get("max_tokens")]
        self._begin_at = 0 if self._prefill or params is None else script.begin_at

    async def send(self) -> web.StreamResponse:
        await asyncio.sleep(self._script.first_delay)
        failure = self._script.failure
        if failure is not None and failure.kind is FailureKind.STATUS:
            return web.json_response({"error": failure.error}, status=failure.status)
        return await (self._stream() if self._body.get("stream") else self._whole())

    async def _whole(self) -> web.StreamResponse:
        if self._script.failure is not None:
            await self._fail(self._script.failure)
        await asyncio.sleep(self._script.token_delay * (len(self._tokens) - 1))
        choice = self._choice(self._begin_at, self._tokens[self._begin_at :], streamed=False)
        choice["finish_reason"] = "length" if self._prefill else self._script.finish_reason
        body = {"id": "stub", "object": "stub", "choices": [choice], "usage": self._usage(), **self._result()}
        return web.Response(body=_encoder.encode(body), content_type="application/json")

    async def _stream(self) -> web.StreamResponse:
        script, response = self._script, web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(self._request)
        if self._api is Api.CHAT:
            await self._event(response, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for index in range(self._begin_at, len(self._tokens), script.chunk_tokens):
            if script.failure is not None and index >= script.failure.after_tokens:
                if script.failure.kind is FailureKind.EVENT:
                    await self._event(response, {"error": {"message": "scripted failure", "code": "scripted"}})
                    return response
                if script.failure.kind is FailureKind.CUT:
                    return response
                await self._fail(script.failure)
            if script.token_delay:
                await asyncio.sleep(script.token_delay)
            tokens = self._tokens[index : index + script.chunk_tokens]
            await self._event(response, {"choices": [self._choice(index, tokens, streamed=True)]})
        last: Json = {"index": 0, "finish_reason": script.finish_reason, **self._text("", streamed=True)}
        await self._event(response, {"choices": [last]})
        if (self._body.get("stream_options") or {}).get("include_usage"):
            await self._event(response, {"choices": [], "usage": self._usage(), **self._result()})
        await response.write(sse.event(sse.DONE))
        return response

    async def _fail(self, failure: StubFailure) -> NoReturn:
        if failure.kind is FailureKind.RESET and self._request.transport is not None:
            self._request.transport.abort()
        await asyncio.Event().wait()
        raise AssertionError

    async def _event(self, response: web.StreamResponse, chunk: Json) -> None:
        await response.write(sse.event(_encoder.encode({"id": "stub", "object": "stub", **chunk})))

    def _choice(self, index: int, tokens: tuple[int, ...], *, streamed: bool) -> Json:
        text = "".join(map(self._script.texts, tokens))
        choice: Json = {"index": 0, "finish_reason": None, **self._text(text, streamed=streamed)}
        if self._body.get("return_token_ids"):
            choice["token_ids"] = list(tokens)
            if self._script.numbered:
                choice["token_index"] = index
        return choice

    def _text(self, text: str, *, streamed: bool) -> Json:
        if self._api is Api.COMPLETIONS:
            return {"text": text}
        return {"delta": {"content": text}} if streamed else {"message": {"role": "assistant", "content": text}}

    def _usage(self) -> Json:
        prompt, completion = self._script.prompt_tokens, len(self._tokens) - self._begin_at
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self._script.cached_tokens},
        }

    def _result(self) -> Json:
        return {} if self._script.result is None or self._prefill else {RESULT_FIELD: self._script.result}


async def _serve(host: str, port: int, tokens: int) -> None:
    async with StubEngine(StubScript(tokens=tuple(range(tokens))), host=host, port=port, keep=False) as engine:
        print(engine.address, flush=True)  # noqa: T201
        await asyncio.Event().wait()


def main() -> None:
    """Serve one stub until killed; its address is the first line of the output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of each answer")
    args = parser.parse_args()
    asyncio.run(_serve(args.host, args.port, args.tokens))


if __name__ == "__main__":
    main()
