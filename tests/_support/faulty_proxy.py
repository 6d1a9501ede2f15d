"""Stands before an API server and breaks what a test wants broken. What no fault speaks of passes untouched.

    async with faulty_proxy.before(plane.api.access) as proxy:
        proxy.refuse(429, path="/statefulsets", times=3, retry_after=1)
        ...  # the operator runs with proxy.kubeconfig(access, path)

Every fault gives back a `Fault` that counts its hits and can be taken away. Faults are tried in the order in which
they were made; the first that fits is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
from aiohttp import web

from cluster_api import Access, tls
from hang_up import hang_up

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te", "upgrade"}
_REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
_BODY_BYTES = 16 * 2**20

Respond = Callable[[web.Request], web.Response]


@dataclasses.dataclass(eq=False)
class Fault:
    """method: empty for all. path: searched for in path and query. times: how often it still acts. Exactly one of the
    others says what it does."""

    method: str
    path: re.Pattern[str]
    times: float
    seconds: float = 0.0
    respond: Respond | None = None
    resets: bool = False
    silent: bool = False
    hits: int = 0

    def end(self) -> None:
        self.times = 0

    def fits(self, request: web.Request) -> bool:
        return (
            self.times > 0
            and self.method in ("", request.method)
            and (not self.silent or _is_watch(request))
            and self.path.search(request.path_qs) is not None
        )


@dataclasses.dataclass(eq=False)
class _Stream:
    """A watch that is open. expired: it has told its client that it ends."""

    request: web.Request
    response: web.StreamResponse
    answer: aiohttp.ClientResponse
    silent: bool = False
    expired: bool = False


class FaultyProxy:
    """url: where clients reach it, over plain HTTP on loopback."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.url = ""
        self._session = session
        self._faults: list[Fault] = []
        self._streams: list[_Stream] = []

    def kubeconfig(self, access: Access, path: Path) -> Path:
        """For the same user, by way of the proxy."""
        return dataclasses.replace(access, url=self.url, authority="").kubeconfig(path)

    @property
    def watches(self) -> list[str]:
        """Paths of the watches that are open."""
        return [stream.request.path for stream in self._streams]

    # Faults.

    def refuse(
        self, code: int, *, method: str = "", path: str = "", times: float = math.inf, retry_after: int | None = None
    ) -> Fault:
        """Answer with an error, as a Status object."""
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        return self.respond(
            lambda request: web.json_response(_status(code), status=code, headers=headers), method, path, times
        )

    def respond(self, respond: Respond, method: str = "", path: str = "", times: float = math.inf) -> Fault:
        """Answer in the API server's stead, such as for a pod that no kubelet runs."""
        return self._add(Fault(method, re.compile(path), times, respond=respond))

    def delay(self, seconds: float, *, method: str = "", path: str = "", times: float = math.inf) -> Fault:
        """Let a request wait before it goes on to the API server."""
        return self._add(Fault(method, re.compile(path), times, seconds=seconds))

    def reset(self, *, method: str = "", path: str = "", times: float = math.inf) -> Fault:
        """Break the connection in place of an answer."""
        return self._add(Fault(method, re.compile(path), times, resets=True))

    def silence_watches(self, path: str = "", times: float = math.inf) -> Fault:
        """Open watches and new ones stay connected and tell nothing any more, bookmarks included.

        A watch that was silenced stays so after `end`; only later ones speak.
        """
        for stream in self._open(path):
            stream.silent = True
        return self._add(Fault("GET", re.compile(path), times, silent=True))

    async def expire_watches(self, path: str = "") -> int:
        """End the open watches as the API server does for a version that is too old; how many there were."""
        event = json.dumps({"type": "ERROR", "object": _status(410)}).encode() + b"\n"
        streams = self._open(path)
        for stream in streams:
            stream.silent = stream.expired = True  # nothing may follow
            with contextlib.suppress(ConnectionError):
                await stream.response.write(event)
                await stream.response.write_eof()
            hang_up(stream.answer)
        return len(streams)

    def reset_watches(self, path: str = "") -> int:
        """Break the connections of the open watches; how many there were."""
        streams = self._open(path)
        for stream in streams:
            _abort(stream.request)
        return len(streams)

    def _open(self, path: str) -> list[_Stream]:
        return [stream for stream in self._streams if re.search(path, stream.request.path_qs)]

    def _add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    # Requests.

    async def handle(self, request: web.Request) -> web.StreamResponse:
        fault = next((fault for fault in self._faults if fault.fits(request)), None)
        if fault is not None:
            fault.hits += 1
            fault.times -= 1
            if fault.respond is not None:
                return fault.respond(request)
            if fault.resets:
                _abort(request)
                return web.Response()
            await asyncio.sleep(fault.seconds)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        body = await request.read()
        try:
            async with self._session.request(
                request.method, request.raw_path, headers=headers, data=body or None
            ) as answer:
                return await self._pass_on(request, answer, silent=fault is not None and fault.silent)
        except aiohttp.ClientConnectionError:  # no API server: neither has the client
            _abort(request)
            return web.Response()

    async def _pass_on(self, request: web.Request, answer: aiohttp.ClientResponse, silent: bool) -> web.StreamResponse:
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        if _is_watch(request):
            await self._pass_events(_Stream(request, response, answer, silent))
        else:
            async for part in answer.content.iter_any():
                await response.write(part)
        await response.write_eof()
        return response

    async def _pass_events(self, stream: _Stream) -> None:
        self._streams.append(stream)
        try:
            async for part in stream.answer.content.iter_any():
                if not stream.silent:
                    await stream.response.write(part)
        except aiohttp.ClientError:
            if not stream.silent:
                raise
        finally:
            self._streams.remove(stream)
            hang_up(stream.answer)
        if stream.silent and not stream.expired:
            await asyncio.Event().wait()  # until the client hangs up: that the API server has gone is not told either


@contextlib.asynccontextmanager
async def before(access: Access) -> AsyncIterator[FaultyProxy]:
    """A proxy on a free port of loopback. The user is the client's own: its headers pass through."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0)
    connector = aiohttp.TCPConnector(limit=0, ssl=tls(access))
    async with aiohttp.ClientSession(
        access.url, timeout=timeout, connector=connector, auto_decompress=False
    ) as session:
        proxy = FaultyProxy(session)
        application = web.Application(client_max_size=_BODY_BYTES)
        application.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        proxy.url = f"http://{host}:{port}"
        try:
            yield proxy
        finally:
            await runner.cleanup()


def _is_watch(request: web.Request) -> bool:
    return request.query.get("watch", "").lower() in ("1", "true")


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _status(code: int) -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"the test's proxy answers {code}",
        "reason": _REASONS.get(code, ""),
        "code": code,
    }
