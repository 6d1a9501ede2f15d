"""Requests to engines: one connection pool, bounded answers, and errors that say at which point it broke."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from kvferry_runtime.errors import KvferryError
from kvferry_runtime.router.sse import DONE, EventSplitter, EventTooLarge

CONNECT_SECONDS = 2.0
KEEPALIVE_SECONDS = 2.0
"""Shorter than any engine's own, so that a request never meets a connection that the engine is just closing."""
FINISH_SECONDS = 1.0
WITHDRAW_SECONDS = 2.0
MAX_WITHDRAWALS = 256
"""At a time; what is not said is made good by the transfer's deadline."""
MAX_ANSWER_BYTES = 64 << 20
MAX_ERROR_BYTES = 64 << 10
MAX_SHORT_ANSWER_BYTES = 256 << 10
_PROBE_IDLE_SECONDS, _PROBE_EVERY_SECONDS, _PROBES = 5, 2, 3

Json = dict[str, Any]

logger = logging.getLogger(__name__)


class UpstreamError(KvferryError):
    """Base: `engine` (host:port) did not give a whole answer."""

    def __init__(self, engine: str, message: str) -> None:
        super().__init__(f"engine {engine}: {message}")
        self.engine = engine


class Unreachable(UpstreamError):
    """Nobody there, or the connection ended before the answer began."""


class Broken(UpstreamError):
    """The connection ended in the middle of the answer."""


class Silent(UpstreamError):
    """Nothing heard within the limit."""


class Malformed(UpstreamError):
    """The answer is not one of the OpenAI API, or larger than the limit."""


class Refused(UpstreamError):
    """The engine answered with an error. detail: its `error` object, if it sent one."""

    def __init__(self, engine: str, status: int, detail: Json | None) -> None:
        message = detail.get("message") if detail else None
        super().__init__(engine, str(message or f"HTTP status {status}"))
        self.status = status
        self.detail = detail

    @property
    def transfer_failed(self) -> bool:
        """Whether the KV did not arrive, and the failure policy does not let the engine compute the prompt itself."""
        return (self.detail or {}).get("type") == "transfer_failed"


class Upstream:
    """The router's side of all engines. Open it with `async with`."""

    def __init__(self, silence_seconds: float, answer_seconds: float) -> None:
        self.silence_seconds = silence_seconds
        self.answer_seconds = answer_seconds
        self._session: aiohttp.ClientSession | None = None
        self._withdrawals: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        # no limit of its own: the router admits a bounded number of requests, each with at most two connections
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS, socket_factory=probed_socket)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
            read_bufsize=1 << 18,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._withdrawals:
            await asyncio.wait(self._withdrawals)
        if self._session is not None:
            await self._session.close()

    def withdraw(self, engine: str, transfer_id: str) -> None:
        """Tell a prefill engine that nobody fetches this KV, in the background: no client waits for that."""
        if len(self._withdrawals) < MAX_WITHDRAWALS:
            task = asyncio.create_task(self._withdraw(engine, transfer_id))
            self._withdrawals.add(task)
            task.add_done_callback(self._withdrawals.discard)

    async def _withdraw(self, engine: str, transfer_id: str) -> None:
        assert self._session is not None, "used outside of `async with`"
        timeout = aiohttp.ClientTimeout(total=WITHDRAW_SECONDS)
        try:
            async with self._session.delete(f"http://{engine}/v1/transfers/{transfer_id}", timeout=timeout):
                pass  # engines without this call end the transfer by its deadline
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.debug("engine %s was not told of a withdrawn transfer: %s", engine, error)

    async def post(self, engine: str, path: str, body: bytes, headers: Mapping[str, str], limit_seconds: float) -> Json:
        """An answer that is not streamed.

        Raises:
            UpstreamError: as its subclasses say.
        """
        timeout = aiohttp.ClientTimeout(total=limit_seconds, sock_connect=CONNECT_SECONDS)
        answering = False
        try:
            async with self._request(engine, path, body, headers, timeout) as response:
                answering = True
                if response.status != 200:
                    raise await _refused(engine, response)
                return _object(engine, await _read(engine, response, MAX_ANSWER_BYTES))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _mapped(engine, error, answering) from error

    async def get(self, address: str, path: str, limit_seconds: float) -> bytes:
        """A short answer, of a sidecar say.

        Raises:
            UpstreamError: as its subclasses say.
        """
        assert self._session is not None, "used outside of `async with`"
        timeout = aiohttp.ClientTimeout(total=limit_seconds, sock_connect=CONNECT_SECONDS)
        answering = False
        try:
            async with self._session.get(f"http://{address}{path}", timeout=timeout, allow_redirects=False) as response:
                answering = True
                if response.status != 200:
                    raise await _refused(address, response)
                return await _read(address, response, MAX_SHORT_ANSWER_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _mapped(address, error, answering) from error

    def stream(self, engine: str, path: str, body: bytes, headers: Mapping[str, str]) -> EventStream:
        """A streamed answer; the request goes out with the first `next`."""
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=self.silence_seconds)
        return EventStream(engine, lambda: self._request(engine, path, body, headers, timeout))

    def _request(
        self, engine: str, path: str, body: bytes, headers: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        assert self._session is not None, "used outside of `async with`"
        return self._session.post(
            f"http://{engine}{path}",
            data=body,
            headers={"Content-Type": "application/json", **headers},
            timeout=timeout,
            allow_redirects=False,
        )


class EventStream:
    """The events of one streamed answer."""

    def __init__(self, engine: str, request: Callable[[], AbstractAsyncContextManager[aiohttp.ClientResponse]]) -> None:
        self._engine = engine
        self._request = request
        self._response: aiohttp.ClientResponse | None = None
        self._splitter = EventSplitter()
        self._done = False

    async def next(self) -> list[Json]:
        """The events that came together, at least one; an empty list at the end of the stream.

        Raises:
            UpstreamError: as its subclasses say.
        """
        try:
            if self._response is None:
                response = await self._request().__aenter__()
                self._response = response
                if response.status != 200:
                    raise await _refused(self._engine, response)
            while not self._done and (received := await self._response.content.readany()):
                if events := self._parsed(self._splitter.feed(received)):
                    return events
            return []
        except EventTooLarge as error:
            raise Malformed(self._engine, str(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _mapped(self._engine, error, self._response is not None) from error

    def _parsed(self, events: list[bytes]) -> list[Json]:
        if DONE in events:
            self._done = True
            events = events[: events.index(DONE)]
        return [_object(self._engine, data) for data in events]

    async def finish(self) -> None:
        """Read past the last event, so that the connection can serve again."""
        if self._response is None:
            return
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                while await self._response.content.readany():
                    pass
        except (aiohttp.ClientError, TimeoutError, OSError):
            return

    def close(self) -> None:
        """Close the connection unless the answer was read to its end, so that the engine stops at once."""
        if self._response is not None:
            self._response.close()


def _mapped(engine: str, error: Exception, answering: bool) -> UpstreamError:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return Unreachable(engine, f"no connection within {CONNECT_SECONDS:g} s")
    if isinstance(error, TimeoutError):
        return Silent(engine, "nothing heard within the limit")
    if answering:
        return Broken(engine, "the connection ended in the middle of the answer")
    return Unreachable(engine, "no connection, or it ended before the answer")


async def _read(engine: str, response: aiohttp.ClientResponse, limit: int) -> bytes:
    parts = bytearray()
    async for part in response.content.iter_any():
        parts += part
        if len(parts) > limit:
            response.close()
            raise Malformed(engine, f"the answer is longer than {limit} bytes")
    return bytes(parts)


async def _refused(engine: str, response: aiohttp.ClientResponse) -> UpstreamError:
    """The engine's error; it must come soon after its status line, since a client waits for it."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            body = _object(engine, await _read(engine, response, MAX_ERROR_BYTES))
    except (Malformed, TimeoutError):
        body = {}
    detail = body.get("error")
    return Refused(engine, response.status, detail if isinstance(detail, dict) else None)


def _object(engine: str, text: bytes) -> Json:
    try:
        parsed = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(engine, f"the answer is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise Malformed(engine, "the answer is not a JSON object")
    return parsed


def probed_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices a dead machine or a cut link while an engine is silent."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_IDLE_SECONDS)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_SECONDS)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    return made
