"""HTTP of the engine: OpenAI's API, health, readiness, metrics, state."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from aiohttp import web

from kvferry_runtime.engine.reference.answer import Answer, error_body, failure_body
from kvferry_runtime.engine.reference.attachment import Attachment
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.loop import Refused
from kvferry_runtime.engine.reference.openai import Api, BadRequest, Json, parse
from kvferry_runtime.engine.reference.request import Delta, Event, Failed

MAX_BODY_BYTES = 16 << 20
"""As much as the router takes."""
BODY_SECONDS = 30.0
"""For a body to come, as long as the router gives it."""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STALLED_SECONDS = 120.0
"""Without any progress of the engine's loop for this long, the process is better restarted."""

_log = logging.getLogger(__name__)


class EngineServer:
    """Routes and their handlers. The engine comes later than the server, which listens while the model is loading."""

    def __init__(self, served_name: str, role: str) -> None:
        self._name = served_name
        self._role = role
        self._started = int(time.time())
        self._engine: Engine | None = None
        self._draining = False
        self._attachment = Attachment()

    def serve(self, engine: Engine) -> None:
        """From now on, answer."""
        self._engine = engine

    def drain(self) -> None:
        """From now on, refuse; what runs goes on."""
        self._draining = True

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors_as_json])
        for api in Api:
            app.router.add_post(api.value, self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_delete("/v1/transfers/{id}", self._withdraw)
        app.router.add_get("/v1/state", self._state)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        api, engine = Api(request.path), self._engine
        if engine is None or self._draining:
            raise Refused("the engine is shutting down" if self._draining else "the model is still loading")
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            # a few hundred KB can unpack to all the memory there is
            message = f"Content-Encoding {encoding!r}: bodies are taken as they are, send it without compression"
            raise BadRequest(message, status=415)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                content = await request.read()
            body = json.loads(content)
        except web.RequestPayloadError as error:
            raise BadRequest(f"the body cannot be read: {error}") from error
        except TimeoutError as error:
            raise BadRequest(f"the body did not come within {BODY_SECONDS:g} s", status=408) from error
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from error
        asked = parse(api, body, self._name)
        prompt, max_tokens = await engine.prepare(asked)
        identity = ("chatcmpl-" if api is Api.CHAT else "cmpl-") + secrets.token_hex(16)
        answer = Answer(asked, self._name, identity, int(time.time()), len(prompt), engine.codec)
        async with aclosing(engine.generate(asked, prompt, max_tokens)) as events:
            return await (_stream(request, answer, events) if asked.stream else _whole(answer, events))

    async def _models(self, _: web.Request) -> web.Response:
        entry: Json = {"id": self._name, "object": "model", "created": self._started, "owned_by": "kvferry"}
        if self._engine is not None:
            entry["max_model_len"] = self._engine.model.max_positions
        return web.json_response({"object": "list", "data": [entry]})

    async def _withdraw(self, request: web.Request) -> web.Response:
        """The router says that decode will not fetch this KV, so that its blocks need not wait for a deadline."""
        if self._engine is not None:
            self._engine.loop.withdraw(request.match_info["id"])
        return web.Response(status=204)

    async def _state(self, _: web.Request) -> web.Response:
        state: Json = {"model": self._name, "role": self._role, "draining": self._draining}
        return web.json_response(state | (self._engine.state() if self._engine else {"loading": True}))

    async def _healthz(self, _: web.Request) -> web.Response:
        """Alive while the model is loading; afterwards as long as the engine's loop turns."""
        loop = None if self._engine is None else self._engine.loop
        if loop is not None and (not loop.alive() or loop.age() > STALLED_SECONDS):
            return web.Response(status=503, text=f"the engine's loop has not turned for {loop.age():.0f} s\n")
        return web.Response(text="ok\n" if loop else "ok, the model is loading\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._unready()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ready'}\n")

    def _unready(self) -> str | None:
        if self._engine is None:
            return "the model is loading"
        if self._draining:
            return "draining"
        if not self._engine.loop.alive():
            return "the engine's loop has ended"
        return "not attached to the sidecar yet" if self._attachment.awaited(self._engine.agent) else None

    async def _metrics(self, _: web.Request) -> web.Response:
        text = self._engine.metrics.exposition() if self._engine else b""
        return web.Response(body=text, headers={"Content-Type": METRICS_TYPE})


async def _whole(answer: Answer, events: AsyncIterator[Event]) -> web.Response:
    async for event in events:
        if isinstance(event, Delta):
            answer.add(event)
        elif isinstance(event, Failed):
            return web.json_response(failure_body(event), status=event.status)
        else:
            return web.json_response(answer.body(event))
    raise AssertionError("events ended without an end")


async def _stream(request: web.Request, answer: Answer, events: AsyncIterator[Event]) -> web.StreamResponse:
    """Server-sent events. The status is sent with the first token, so that an earlier failure has its own."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    async for event in events:
        if isinstance(event, Failed):
            if not response.prepared:
                return web.json_response(failure_body(event), status=event.status)
            await _send(response, failure_body(event))
            break
        if not response.prepared:
            await response.prepare(request)
        if isinstance(event, Delta):
            await _send(response, answer.chunk(event))
            continue
        for chunk in answer.last_chunks(event):
            await _send(response, chunk)
        await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def _send(response: web.StreamResponse, body: Json) -> None:
    await response.write(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadRequest as error:
        return _error(error.status, str(error), "invalid_request_error", error.code)
    except Refused as error:
        return _error(503, str(error), "unavailable", "unavailable", {"Retry-After": "1"})
    except web.HTTPRequestEntityTooLarge:
        return _error(413, f"the body has more than {MAX_BODY_BYTES} bytes", "invalid_request_error", "too_large")
    except web.HTTPException as error:
        return _error(error.status, f"{request.method} {request.path}: {error.reason}", "invalid_request_error", "http")
    except ConnectionResetError:
        raise  # the client went away; there is nobody to answer
    except Exception:
        _log.exception("a request failed by a defect")
        return _error(500, "the engine failed; its log says why", "internal_error", "internal")


def _error(status: int, message: str, kind: str, code: str, headers: dict[str, Any] | None = None) -> web.Response:
    return web.json_response(error_body(message, kind, code), status=status, headers=headers)
