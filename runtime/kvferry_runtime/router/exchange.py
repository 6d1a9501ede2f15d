"""One attempt at a request: prefill and decode at work at the same time (or one engine alone), one answer.

Whatever ends an attempt — an error, the deadline, the client's leaving — closes both engines' connections at once, so
that neither computes for nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kvferry_contract.endpoints import Group
from kvferry_contract.transfer import RESULT_FIELD, TransferParams
from kvferry_runtime.errors import KvferryError
from kvferry_runtime.router.answer import Identity, StreamedAnswer, whole_answer
from kvferry_runtime.router.choice import AnswerError, Json
from kvferry_runtime.router.first_token import FirstToken, read_first_token
from kvferry_runtime.router.openai import ClientRequest, decode_body, prefill_body
from kvferry_runtime.router.reply import Reply
from kvferry_runtime.router.upstream import Broken, Malformed, Silent, Upstream, UpstreamError

LATE_PREFILL_SECONDS = 1.0
"""Once decode has said everything, prefill's account of the prompt is waited for no longer than this."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class PrefillFailed(KvferryError):
    """Prefill gave no first token, and decode had not spoken yet."""

    def __init__(self, cause: UpstreamError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class ErrorEvent(KvferryError):
    """The decode engine ended its stream with an error event. detail: its `error` object."""

    def __init__(self, detail: Json) -> None:
        super().__init__(str(detail.get("message", "the decode engine failed")))
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Transfer:
    """The prefill half of an attempt, and what both engines are told of the transfer."""

    prefill: Group
    prefill_params: TransferParams
    decode_params: TransferParams


@dataclass(frozen=True, slots=True)
class Attempt:
    """Who is asked. transfer: None when one group does it all."""

    decode: Group
    transfer: Transfer | None
    engine_headers: Mapping[str, str]
    client_headers: Mapping[str, str]
    identity: Identity


class Exchange:
    """Runs one attempt; `whole` or `streamed`, once.

    Both raise:
        PrefillFailed: before decode had spoken.
        UpstreamError: decode failed; the subclass says how.
        ErrorEvent, AnswerError: decode reported an error, or its answer cannot be used.
        RequestFailed: the client went away or stopped reading.
    """

    def __init__(self, upstream: Upstream, request: ClientRequest, attempt: Attempt) -> None:
        self._upstream = upstream
        self._request = request
        self._attempt = attempt
        self._tasks: set[asyncio.Task[Any]] = set()
        self._arrived = False
        """Decode has prefill's KV, as far as it says."""
        self.first_token: tuple[str, float] | None = None
        """Which half gave the first token, and when (monotonic); of a streamed answer."""

    async def whole(self) -> Json:
        """The body of an answer that is not streamed."""
        try:
            prefill = self._start_prefill()
            decode = self._start(
                self._upstream.post(
                    self._attempt.decode.engine,
                    self._request.api.value,
                    self._decode_body(),
                    self._attempt.engine_headers,
                    self._upstream.answer_seconds,
                )
            )
            if prefill is not None:
                await asyncio.wait((prefill, decode), return_when=asyncio.FIRST_COMPLETED)
                if not decode.done():
                    _check_prefill(prefill)
            body = await decode
            self._arrived = _kv_arrived(body.get(RESULT_FIELD))
            first = await _late_first_token(prefill)
            return whole_answer(self._request, self._attempt.identity, body, first)
        finally:
            await self._stop()

    async def streamed(self, reply: Reply) -> StreamedAnswer:
        """Send the whole stream to `reply`; returns the account of it."""
        answer = StreamedAnswer(self._request, self._attempt.identity)
        decode = self._upstream.stream(
            self._attempt.decode.engine, self._request.api.value, self._decode_body(), self._attempt.engine_headers
        )
        try:
            prefill = self._start_prefill()
            waiting = prefill
            while True:
                if waiting is None:
                    chunks = await decode.next()
                else:
                    coming = self._start(decode.next())
                    await asyncio.wait((waiting, coming), return_when=asyncio.FIRST_COMPLETED)
                    if coming.done() and answer.needs_first(coming.result()):
                        await asyncio.wait((waiting,))
                    if waiting.done():
                        await self._send(reply, _offer_first(answer, waiting), "prefill")
                        waiting = None
                    chunks = await coming
                    self._tasks.discard(coming)
                if not chunks:
                    break
                events, failure = _take(answer, chunks)
                await self._send(reply, events, "decode")
                if failure is not None:
                    raise failure
            if not answer.finished:
                raise Broken(self._attempt.decode.engine, "the stream ended before the answer did")
            if waiting is not None and (first := await _late_first_token(waiting)):
                answer.offer_first(first)
            await self._send(reply, answer.end(), "decode")
            await decode.finish()
            self._arrived = _kv_arrived(answer.engine_result)
            return answer
        finally:
            decode.close()
            await self._stop()

    async def _send(self, reply: Reply, events: bytes, source: str) -> None:
        if events and self.first_token is None:
            self.first_token = (source, time.monotonic())
        await reply.events(events, self._attempt.client_headers)

    def _decode_body(self) -> bytes:
        transfer = self._attempt.transfer
        return decode_body(self._request, transfer.decode_params if transfer else None)

    def _start_prefill(self) -> asyncio.Task[FirstToken] | None:
        transfer = self._attempt.transfer
        return self._start(self._prefill(transfer)) if transfer else None

    async def _prefill(self, transfer: Transfer) -> FirstToken:
        engine = transfer.prefill.engine
        body = await self._upstream.post(
            engine,
            self._request.api.value,
            prefill_body(self._request, transfer.prefill_params),
            self._attempt.engine_headers,
            self._upstream.silence_seconds,
        )
        try:
            return read_first_token(self._request.api, body)
        except AnswerError as error:
            raise Malformed(engine, str(error)) from error

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    async def _stop(self) -> None:
        """Cancel what still runs: that closes its connection. What prefill keeps for decode in vain is withdrawn."""
        transfer = self._attempt.transfer
        if transfer is not None and not self._arrived:
            self._upstream.withdraw(transfer.prefill.engine, transfer.prefill_params.transfer_id)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()


def _kv_arrived(result: object) -> bool:
    """By what decode says of itself; engines that say nothing are trusted to end their transfers."""
    return not isinstance(result, dict) or result.get("mode") == "transferred"


def _first_token(prefill: asyncio.Task[FirstToken]) -> FirstToken:
    """Prefill's answer, which has come.

    Raises:
        PrefillFailed: it is an error.
    """
    try:
        return prefill.result()
    except UpstreamError as error:
        raise PrefillFailed(error) from error


def _check_prefill(prefill: asyncio.Task[FirstToken]) -> None:
    """Prefill has answered, and decode, which is not streamed, may or may not be computing.

    Raises:
        PrefillFailed: it is an error that decode does not know of yet. Not for silence: that takes longer than decode's
            own deadlines, so decode has long been helping itself.
    """
    try:
        _first_token(prefill)
    except PrefillFailed as failure:
        if not isinstance(failure.cause, Silent):
            raise
        logger.warning("prefill fell silent, decode goes on without it: %s", failure)


def _offer_first(answer: StreamedAnswer, prefill: asyncio.Task[FirstToken]) -> bytes:
    """What can be sent of prefill's answer. Its failure does not matter once decode has spoken."""
    try:
        return answer.offer_first(_first_token(prefill))
    except PrefillFailed as failure:
        if not answer.decode_spoke:
            raise
        logger.warning("prefill failed after decode had gone on without it: %s", failure)
        return b""


async def _late_first_token(prefill: asyncio.Task[FirstToken] | None) -> FirstToken | None:
    """Prefill's answer after the end of decode's, None if it does not come soon."""
    if prefill is None:
        return None
    await asyncio.wait((prefill,), timeout=LATE_PREFILL_SECONDS)
    if not prefill.done():
        return None
    try:
        return prefill.result()
    except UpstreamError as error:
        logger.warning("prefill failed after decode had gone on without it: %s", error)
        return None


def _take(answer: StreamedAnswer, chunks: list[Json]) -> tuple[bytes, ErrorEvent | None]:
    """What can be sent of decode's chunks, and the engine's own error if that is the last of them.

    Raises:
        AnswerError: as `StreamedAnswer.take`.
    """
    out = b""
    for chunk in chunks:
        if (detail := chunk.get("error")) is not None:
            return out, ErrorEvent(detail if isinstance(detail, dict) else {"message": str(detail)})
        out += answer.take(chunk)
    return out, None
