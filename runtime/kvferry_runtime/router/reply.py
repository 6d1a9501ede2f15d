"""The client's side of a request: headers go out with the first byte, a client that stops reading is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from kvferry_runtime.router import sse
from kvferry_runtime.router.failure import RequestFailed
from kvferry_runtime.router.reasons import FailureReason

WRITE_SECONDS = 30.0
"""A client that takes nothing for this long is dropped: it holds a decode slot. Until then nothing more is read."""

TRANSFER_ID_HEADER = "x-kvferry-transfer-id"
MODE_HEADER = "x-kvferry-mode"
REASON_HEADER = "x-kvferry-reason"

_EVENT_STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_encoder = msgspec.json.Encoder()


class Reply:
    """One answer being written."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response: web.StreamResponse | None = None

    @property
    def started(self) -> bool:
        """Whether the client has been sent anything: after that an error can only be an event."""
        return self._response is not None

    async def events(self, data: bytes, headers: Mapping[str, str]) -> None:
        """Send events; `headers` go out before the first.

        Raises:
            RequestFailed: the client went away or takes nothing.
        """
        if not data:
            return
        async with _bounded_write():
            if self._response is None:
                self._response = web.StreamResponse(headers={**headers, **_EVENT_STREAM})
                await self._response.prepare(self._request)
            await self._response.write(data)

    async def end(self) -> web.StreamResponse:
        """End a streamed answer.

        Raises:
            RequestFailed: the client went away or takes nothing.
        """
        assert self._response is not None, "nothing was sent"
        async with _bounded_write():
            await self._response.write_eof()
        return self._response

    async def fail(self, failure: RequestFailed, headers: Mapping[str, str]) -> web.StreamResponse:
        """Tell the client: as a JSON body with a status, or as an error event when the answer has begun."""
        if self._response is None:
            retry = {} if failure.retry_after is None else {"Retry-After": str(failure.retry_after)}
            return json_response(failure.body(), failure.status, {**headers, **retry})
        if failure.reason in (FailureReason.CLIENT_GONE, FailureReason.CLIENT_STALLED):
            if self._request.transport is not None:
                self._request.transport.abort()
            return self._response
        await self.events(sse.event(_encoder.encode(failure.body())), headers)
        return await self.end()


@asynccontextmanager
async def _bounded_write() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            yield
    except TimeoutError as error:
        raise RequestFailed(
            FailureReason.CLIENT_STALLED, 499, f"the client took nothing for {WRITE_SECONDS:g} s"
        ) from error
    except ConnectionError as error:
        raise RequestFailed(FailureReason.CLIENT_GONE, 499, "the client went away") from error


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=_encoder.encode(body), status=status, headers=headers, content_type="application/json", charset="utf-8"
    )
