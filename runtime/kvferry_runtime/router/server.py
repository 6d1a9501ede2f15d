"""The router's HTTP API."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from kvferry_contract import pairs
from kvferry_contract.pairs import Report
from kvferry_runtime.router.failure import RequestFailed, bad_request
from kvferry_runtime.router.group_table import GroupTable
from kvferry_runtime.router.metrics import RouterMetrics, group_state
from kvferry_runtime.router.openai import MAX_BODY_BYTES, Api, parse
from kvferry_runtime.router.reasons import FailureReason
from kvferry_runtime.router.relay import REQUEST_ID_HEADER, Call, Relay
from kvferry_runtime.router.reply import Reply, json_response
from kvferry_runtime.router.settings import RouterSettings

MAX_REQUEST_ID = 128
BODY_SECONDS = 30.0
"""A client that sends its body more slowly than this holds one of the places for nothing."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger = logging.getLogger(__name__)


class RouterApi:
    """Handlers of one router. report: what is known of its pairs now."""

    def __init__(
        self,
        settings: RouterSettings,
        table: GroupTable,
        relay: Relay,
        metrics: RouterMetrics,
        report: Callable[[], Report],
    ) -> None:
        self._settings = settings
        self._table = table
        self._relay = relay
        self._metrics = metrics
        self._report = report
        self._started_unix = int(time.time())
        self._in_flight = 0
        self._open: set[asyncio.Timeout] = set()

    def end_all(self) -> None:
        """Fail what is open: each client still gets an error that says why."""
        now = asyncio.get_running_loop().time()
        for limit in self._open:
            limit.reschedule(now)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors_as_json])
        app.add_routes(
            [
                web.post(Api.COMPLETIONS.value, self._completions),
                web.post(Api.CHAT.value, self._chat),
                web.get("/v1/models", self._models),
                web.get("/v1/state", self._state),
                web.get("/v1/pairs", self._pairs),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._exposition),
            ]
        )
        return app

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(Api.COMPLETIONS, request)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(Api.CHAT, request)

    async def _complete(self, api: Api, request: web.Request) -> web.StreamResponse:
        reply = Reply(request)
        answer_id = uuid.uuid4().hex
        request_id = _request_id(request) or answer_id
        self._in_flight += 1
        self._metrics.in_flight.set(self._in_flight)
        try:
            try:
                async with self._until_end():
                    return await self._serve(api, request, reply, request_id, answer_id)
            except RequestFailed as failure:
                return await self._failed(failure, reply, request_id)
            except asyncio.CancelledError:
                self._metrics.failures.labels(FailureReason.CLIENT_GONE.value).inc()
                raise
            except Exception:
                logger.exception("request failed by a defect", extra={"request_id": request_id})
                defect = RequestFailed(FailureReason.INTERNAL, 500, "the router failed; its log says why")
                return await self._failed(defect, reply, request_id)
        finally:
            self._in_flight -= 1
            self._metrics.in_flight.set(self._in_flight)

    @asynccontextmanager
    async def _until_end(self) -> AsyncIterator[None]:
        """
        Raises:
            RequestFailed: `end_all` was called.
        """
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._open.add(limit)
                try:
                    yield
                finally:
                    self._open.remove(limit)
        except TimeoutError as error:
            if not limit.expired():
                raise
            message = "the router shut down before the answer was complete; try again"
            raise RequestFailed(FailureReason.SHUTDOWN, 503, message) from error

    async def _serve(
        self, api: Api, request: web.Request, reply: Reply, request_id: str, answer_id: str
    ) -> web.StreamResponse:
        started = time.monotonic()
        if self._in_flight > self._settings.max_in_flight:
            raise RequestFailed(
                FailureReason.OVERLOADED,
                503,
                f"the router serves {self._settings.max_in_flight} requests at a time; try again",
                retry_after=1,
            )
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            # a few hundred KB can unpack to all the memory there is
            message = f"Content-Encoding {encoding!r}: bodies are taken as they are, send it without compression"
            raise bad_request(message, status=415)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise bad_request(f"the body is larger than {MAX_BODY_BYTES} bytes", status=413) from error
        except web.RequestPayloadError as error:
            raise bad_request(f"the body cannot be read: {error}") from error
        except TimeoutError as error:
            raise bad_request(f"the body did not come within {BODY_SECONDS:g} s", status=408) from error
        parsed = parse(api, body, self._settings.served_name)
        return await self._relay.serve(Call(parsed, request_id, answer_id, started), reply)

    async def _failed(self, failure: RequestFailed, reply: Reply, request_id: str) -> web.StreamResponse:
        self._metrics.failures.labels(failure.reason.value).inc()
        if failure.reason is not FailureReason.BAD_REQUEST:
            extra = {"request_id": request_id, "reason": failure.reason.value, "status": failure.status}
            logger.warning("request failed: %s", failure, extra=extra)
        try:
            return await reply.fail(failure, {REQUEST_ID_HEADER: request_id})
        except RequestFailed as gone:
            return await reply.fail(gone, {})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        model = {"id": self._settings.served_name, "object": "model", "created": self._started_unix}
        return json_response({"object": "list", "data": [{**model, "owned_by": "kvferry"}]})

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        return json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.StreamResponse:
        serving = any(group.role != "prefill" and group.ready and not group.terminating for group in self._table.groups)
        return json_response(
            {"status": "ok"} if serving else {"status": "no decode group is ready"}, 200 if serving else 503
        )

    async def _state(self, request: web.Request) -> web.StreamResponse:
        aside = self._table.aside()
        groups = [
            {
                "role": group.role,
                "ordinal": group.ordinal,
                "revision": group.revision,
                "pod": group.pod,
                "engine": group.engine,
                "state": group_state(group, aside),
                "in_flight": self._table.in_flight(group.engine),
            }
            for group in self._table.groups
        ]
        return json_response({"in_flight": self._in_flight, "groups": groups})

    async def _pairs(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=pairs.dump(self._report()), content_type="application/json")

    async def _exposition(self, request: web.Request) -> web.StreamResponse:
        text = self._metrics.exposition(self._table.groups, self._table.aside())
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _request_id(request: web.Request) -> str | None:
    """The client's id for its request, if it can stand in a log line and a header."""
    given = request.headers.get(REQUEST_ID_HEADER, "")
    return given if 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable() else None


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Unknown paths and wrong methods answer in the same shape as everything else."""
    try:
        return await handler(request)
    except web.HTTPError as error:
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return json_response(
            bad_request(f"{error.reason}: {request.method} {request.path}").body(), error.status, headers
        )
