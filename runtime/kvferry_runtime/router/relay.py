"""From a client's request to its answer: choose groups, try, fall back as the policy allows, tell what happened."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from kvferry_contract.config import FailurePolicy
from kvferry_contract.endpoints import Group
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.router.answer import Identity
from kvferry_runtime.router.choice import AnswerError, TokenMismatch
from kvferry_runtime.router.exchange import Attempt, ErrorEvent, Exchange, PrefillFailed, Transfer
from kvferry_runtime.router.failure import RequestFailed
from kvferry_runtime.router.group_table import GroupTable
from kvferry_runtime.router.metrics import RouterMetrics
from kvferry_runtime.router.openai import Api, ClientRequest
from kvferry_runtime.router.pairing import Alone, Nobody, Pair, Wish
from kvferry_runtime.router.reasons import FailureReason, Mode, RouteReason
from kvferry_runtime.router.reply import MODE_HEADER, REASON_HEADER, TRANSFER_ID_HEADER, Reply, json_response
from kvferry_runtime.router.settings import RouterSettings
from kvferry_runtime.router.upstream import Broken, Malformed, Refused, Silent, Unreachable, Upstream, UpstreamError

REQUEST_ID_HEADER = "x-request-id"
_RETRY_SECONDS = 1
_NOT_THE_CLIENTS_FAULT = frozenset({404, 408, 429})
_OUTCOMES = {"recomputed": RouteReason.RECOMPUTED, "local": RouteReason.CACHED}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """One client request on its way. answer_id: 32 hexadecimal digits, the same over all attempts."""

    request: ClientRequest
    request_id: str
    answer_id: str
    started: float


class Relay:
    """Serves completion requests. Holds no state of its own beyond one request.

    doubt: told of each pair by which a request's KV did not arrive.
    """

    def __init__(
        self,
        settings: RouterSettings,
        table: GroupTable,
        upstream: Upstream,
        metrics: RouterMetrics,
        doubt: Callable[[Pair], None],
    ) -> None:
        self._doubt = doubt
        self._settings = settings
        self._table = table
        self._upstream = upstream
        self._metrics = metrics

    async def serve(self, call: Call, reply: Reply) -> web.StreamResponse:
        """The whole answer.

        Raises:
            RequestFailed: with the reason; nothing of it has been told to the client yet.
        """
        alone = self._alone_from_the_start(call.request)
        skip: frozenset[str] = frozenset()
        failed: RequestFailed | None = None
        while True:
            route = self._table.choose(Wish(alone, self._may_fall_back, skip))
            if isinstance(route, Nobody):
                raise failed or RequestFailed(
                    FailureReason.NO_GROUPS, 503, f"{route.message}; try again", retry_after=_RETRY_SECONDS
                )
            decode = route.decode if isinstance(route, Pair) else route.group
            try:
                return await self._attempt(call, route, decode, reply)
            except PrefillFailed as error:
                failed = self._prefill_failed(error)
                if not self._may_fall_back or reply.started or failed.status < 500:
                    raise failed from error
                alone = RouteReason.PREFILL_FAILED
            except UpstreamError as error:
                if isinstance(route, Pair) and isinstance(error, Refused) and error.transfer_failed:
                    self._doubt(route)
                failed = self._decode_failed(error)
                if skip or not self._may_fall_back or reply.started or not _worth_another(error):
                    raise failed from error
                skip = frozenset({decode.engine})
                self._metrics.decode_retries.inc()
            except ErrorEvent as error:
                raise RequestFailed(FailureReason.DECODE_FAILED, 502, str(error), detail=error.detail) from error
            except TokenMismatch as error:
                self._metrics.token_mismatches.inc()
                raise RequestFailed(FailureReason.TOKEN_MISMATCH, 502, str(error)) from error
            except AnswerError as error:
                raise RequestFailed(FailureReason.BAD_ANSWER, 502, f"engine {decode.engine}: {error}") from error
            logger.warning("request goes another way: %s", failed, extra={"request_id": call.request_id})

    @property
    def _may_fall_back(self) -> bool:
        return self._settings.failure_policy is not FailurePolicy.FAIL

    def _alone_from_the_start(self, request: ClientRequest) -> RouteReason | None:
        if not self._settings.disaggregation:
            return RouteReason.DISABLED
        return RouteReason.SHORT_PROMPT if request.prompt_tokens < self._settings.min_prompt_tokens else None

    async def _attempt(self, call: Call, route: Pair | Alone, decode: Group, reply: Reply) -> web.StreamResponse:
        attempt = self._plan(call, route, decode)
        exchange = Exchange(self._upstream, call.request, attempt)
        with self._table.hold((route.prefill, decode) if isinstance(route, Pair) else (decode,)):
            if call.request.stream:
                answer = await exchange.streamed(reply)
                usage, result = answer.usage(), answer.engine_result
                response = await reply.end()
            else:
                body = await exchange.whole()
                usage, result = body["usage"], body["kvferry"]
                response = json_response(body, headers=attempt.client_headers)
        self._account(call, exchange, usage)
        reason = route.reason if isinstance(route, Alone) else _outcome(result)
        if isinstance(route, Pair) and reason is RouteReason.RECOMPUTED:
            self._doubt(route)
        self._metrics.requests.labels(reason.value).inc()
        return response

    def _plan(self, call: Call, route: Pair | Alone, decode: Group) -> Attempt:
        pair = route if isinstance(route, Pair) else None
        mode = Mode.DISAGGREGATED if pair else Mode.AGGREGATED
        reason = route.reason if isinstance(route, Alone) else RouteReason.DISAGGREGATED
        headers = {MODE_HEADER: mode.value, REASON_HEADER: reason.value, REQUEST_ID_HEADER: call.request_id}
        transfer = self._transfer(pair) if pair else None
        if transfer:
            headers[TRANSFER_ID_HEADER] = transfer.decode_params.transfer_id
        prefix = "cmpl" if call.request.api is Api.COMPLETIONS else "chatcmpl"
        return Attempt(
            decode=decode,
            transfer=transfer,
            engine_headers={REQUEST_ID_HEADER: call.request_id},
            client_headers=headers,
            identity=Identity(
                answer_id=f"{prefix}-{call.answer_id}",
                created=int(time.time()),
                model=self._settings.served_name,
                disaggregated=pair is not None,
                result={
                    "route": mode.value,
                    "route_reason": reason.value,
                    "prefill_pod": pair.prefill.pod if pair else None,
                    "decode_pod": decode.pod,
                },
            ),
        )

    def _transfer(self, pair: Pair) -> Transfer:
        transfer_id, deadline_ms = uuid.uuid4().hex, self._settings.transfer_deadline_ms
        return Transfer(
            prefill=pair.prefill,
            prefill_params=TransferParams(transfer_id, "prefill", (), deadline_ms),
            decode_params=TransferParams(transfer_id, "decode", pair.prefill.sidecars, deadline_ms),
        )

    def _account(self, call: Call, exchange: Exchange, usage: dict[str, Any]) -> None:
        self._metrics.prompt_tokens.inc(usage["prompt_tokens"])
        self._metrics.completion_tokens.inc(usage["completion_tokens"])
        self._metrics.request_seconds.observe(time.monotonic() - call.started)
        if exchange.first_token:
            source, moment = exchange.first_token
            self._metrics.first_token_seconds.labels(source).observe(moment - call.started)

    def _prefill_failed(self, error: PrefillFailed) -> RequestFailed:
        cause = error.cause
        self._judge(cause)
        if isinstance(cause, Refused):
            return _refused(cause, FailureReason.PREFILL_FAILED)
        status = 504 if isinstance(cause, Silent) else 502
        return RequestFailed(FailureReason.PREFILL_FAILED, status, f"prefill failed: {cause}")

    def _decode_failed(self, error: UpstreamError) -> RequestFailed:
        self._judge(error)
        match error:
            case Refused():
                return _refused(error, FailureReason.DECODE_FAILED)
            case Silent():
                return RequestFailed(FailureReason.DEADLINE, 504, str(error))
            case Unreachable():
                return RequestFailed(FailureReason.DECODE_UNREACHABLE, 502, str(error))
            case Malformed():
                return RequestFailed(FailureReason.BAD_ANSWER, 502, str(error))
            case _:
                return RequestFailed(FailureReason.DECODE_LOST, 502, str(error))

    def _judge(self, error: UpstreamError) -> None:
        """A group whose engine went away gets no new requests for a moment."""
        if isinstance(error, Unreachable | Broken):
            self._table.put_aside(error.engine)


def _worth_another(error: UpstreamError) -> bool:
    """Whether another decode group may do better: this one is gone, or says that it takes nothing now."""
    return isinstance(error, Unreachable | Broken) or (isinstance(error, Refused) and error.status == 503)


def _refused(error: Refused, reason: FailureReason) -> RequestFailed:
    """An engine's refusal, passed on; what is the router's own doing (a wrong path, say) becomes a gateway error."""
    if 400 <= error.status < 500 and error.status not in _NOT_THE_CLIENTS_FAULT:
        return RequestFailed(FailureReason.ENGINE_REFUSED, error.status, str(error), detail=error.detail)
    busy = error.status in (429, 503)
    status = 503 if busy else error.status if error.status >= 500 else 502
    return RequestFailed(reason, status, str(error), detail=error.detail, retry_after=_RETRY_SECONDS if busy else None)


def _outcome(result: dict[str, Any] | None) -> RouteReason:
    """What became of a pair's request, as the decode engine says."""
    return _OUTCOMES.get(str((result or {}).get("mode")), RouteReason.DISAGGREGATED)
