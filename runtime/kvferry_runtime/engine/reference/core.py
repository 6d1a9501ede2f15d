"""The life of requests in the engine: admission, transfers, forward passes, tokens, the end. No threads in here.

What is decided here is done elsewhere (`pipeline`), by one process or by a group of stages. Blocks come back exactly
once, by `_retire` and what follows it: a request that is over but whose blocks an agent or a pass may still touch is
*held* until their last word, everything else gives them back before its client hears the end.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Sequence

from kvferry_contract.config import FailurePolicy
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.codec.sparse.budget import Budget
from kvferry_runtime.engine.reference.messages import (
    Cancel,
    Computed,
    GroupLost,
    Loaded,
    Message,
    Reported,
    Sent,
    Submit,
    Withdraw,
)
from kvferry_runtime.engine.reference.metrics import EngineMetrics
from kvferry_runtime.engine.reference.pipeline import Pipeline
from kvferry_runtime.engine.reference.request import (
    Delta,
    Failed,
    Finished,
    FinishReason,
    Mode,
    Request,
    Stage,
)
from kvferry_runtime.engine.reference.scheduler import Prefill, Scheduler, Work
from kvferry_runtime.errors import Reason, StageUnreachable, TransferFailed

MAX_ADMITTED = 64
"""Requests that are parked, prefilling or running at a time; more of them wait."""
PARKED_SHARE = 0.25
"""Of its transfer's deadline, for which a parked request may keep an engine idle that has others waiting."""

_log = logging.getLogger(__name__)


class EngineCore:
    """Called by one thread alone, except `counts`.

    Args:
        pipeline: computes, and reports by messages for `take`.
        budget: of a sparse method, None for all others.
    """

    def __init__(
        self, pipeline: Pipeline, policy: FailurePolicy, budget: Budget | None, metrics: EngineMetrics
    ) -> None:
        self._pipeline = pipeline
        self._policy = policy
        self._budget = budget
        self._metrics = metrics
        self._scheduler = Scheduler(MAX_ADMITTED, pipeline.rows, pipeline.stages)
        self._lost: str | None = None

    def counts(self) -> dict[str, int]:
        """Requests in each stage. May be called from any thread."""
        return self._scheduler.counts()

    def take(self, message: Message) -> None:
        """Take in what happened elsewhere."""
        match message:
            case Submit(request):
                if request.transfer is not None and not request.hands_over:
                    request.kept = self._kept(request)
                self._scheduler.place(request, Stage.WAITING)
            case Cancel(request):
                self._cancel(request)
            case Loaded(request, result):
                self._loaded(request, result)
            case Sent(request, failure):
                self._sent(request, failure)
            case Computed():
                self._computed(message)
            case Reported(report):
                self._pipeline.take(report)
            case Withdraw(transfer_id):
                self._withdraw(transfer_id)
            case GroupLost(text):
                self._lost = text

    def turn(self) -> bool:
        """Admit what fits and begin one pass; whether there was one to begin.

        Raises:
            StageUnreachable: the group has come to its end, or does not go on.
        """
        if self._lost is not None:
            raise StageUnreachable(self._lost)
        self._expire()
        while request := self._scheduler.admissible(self._pipeline.free_blocks):
            try:
                self._admit(request)
            except Exception:
                _log.exception("a request could not be admitted")
                self._break([request])
        work = self._scheduler.next() if self._pipeline.has_room else None
        if work is None:
            self._unpark()
            return False
        self._begin(work)
        return True

    def abandon(self, code: str, message: str) -> None:
        """Fail everything that is open; what is still in use stays held."""
        for request in self._scheduler.requests():
            if request.stage is not Stage.HELD:
                self._fail(request, Failed(503, "unavailable", code, message))

    # ---- admission ----

    def _expire(self) -> None:
        """Requests whose transfer's deadline passed while they waited for blocks."""
        now = time.monotonic()
        for request in self._scheduler.requests([Stage.WAITING]):
            expires = request.expires()
            if expires is None or now < expires or request.mode is Mode.RECOMPUTED:
                continue
            message = f"no {request.blocks} free KV blocks within the transfer's deadline"
            if request.hands_over:
                self._fail(request, Failed(503, "overloaded", Reason.NO_CAPACITY.value, message))
            else:
                self._load_failed(request, TransferFailed(Reason.NO_CAPACITY, message))

    def _admit(self, request: Request) -> None:
        transfer = request.transfer
        if transfer is None or request.mode is Mode.RECOMPUTED:
            self._pipeline.place(request, None, None)
            self._scheduler.place(request, Stage.PREFILLING)
            return
        self._pipeline.place(request, self._remaining(request, transfer), self._kept(request))
        if request.hands_over:
            request.sending = True
            self._scheduler.place(request, Stage.PREFILLING)
        else:
            request.loading = True
            request.parked = time.monotonic()
            self._scheduler.place(request, Stage.PARKED)

    def _kept(self, request: Request) -> int | None:
        """Tokens of its prompt that a transfer carries, None for all."""
        tokens = len(request.prompt)
        return self._budget.kept(tokens) if self._budget is not None and self._budget.evicts(tokens) else None

    def _unpark(self) -> None:
        """Compute the oldest parked prompt here if it keeps the others from their blocks while nothing is computed.

        Prefill may in turn be full of KV that those others have yet to fetch. Where the two engines admitted their
        requests in another order, neither would go on before the deadlines.
        """
        oldest = next(iter(self._scheduler.requests([Stage.PARKED])), None)
        if oldest is None or oldest.given_up or not self._scheduler.requests([Stage.WAITING]):
            return
        assert oldest.transfer is not None
        if time.monotonic() - oldest.parked >= PARKED_SHARE * oldest.transfer.deadline_ms / 1000:
            oldest.given_up = True
            self._pipeline.cancel_load(oldest, Reason.NO_CAPACITY.value)

    def _remaining(self, request: Request, transfer: TransferParams) -> TransferParams:
        """The deadline counts from the request's arrival, not from its admission."""
        waited_ms = int((time.monotonic() - request.arrived) * 1000)
        return dataclasses.replace(transfer, deadline_ms=max(1, transfer.deadline_ms - waited_ms))

    # ---- transfers ----

    def _loaded(self, request: Request, result: LoadResult | TransferFailed) -> None:
        request.loading = False
        if request.stage is Stage.HELD:
            self._let_go(request)
            return
        if isinstance(result, TransferFailed):
            if request.given_up:
                result = TransferFailed(Reason.NO_CAPACITY, "others waited for the KV blocks that it held")
            self._load_failed(request, result)
            return
        if result.tokens is not None:
            self._go_on(request, result, result.tokens)
            return
        first = result.first_token
        if first is None or not 0 <= first < self._pipeline.vocabulary:
            # without it the last position would have to be computed again, in another shape than prefill did
            self._load_failed(request, TransferFailed(Reason.DENIED, f"prefill sent {first} as the first token"))
            return
        if result.kept_tokens != request.kept:
            text = f"{result.kept_tokens} tokens of the prompt were kept, room is for {request.kept}"
            self._load_failed(request, TransferFailed(Reason.INTERNAL, text))
            return
        request.loaded = result
        request.mode = Mode.TRANSFERRED
        request.computed = len(request.prompt)
        self._scheduler.place(request, Stage.RUNNING)
        self._metrics.prompt(request.mode, "")
        self._accept(request, first)

    def _go_on(self, request: Request, result: LoadResult, tokens: int) -> None:
        """Compute the end of the prompt here: from where a pass begins, so the answer is the one of a whole prefill."""
        request.loaded = result
        request.mode = Mode.TRANSFERRED
        request.computed = tokens
        self._scheduler.place(request, Stage.PREFILLING)

    def _load_failed(self, request: Request, failure: TransferFailed) -> None:
        """Go on by the failure policy. By now the sidecar has retried if the policy says so."""
        self._metrics.load_failed(failure.reason)
        assert request.transfer is not None
        _log.warning(
            "KV did not arrive: %s",
            failure,
            extra={"transfer_id": request.transfer.transfer_id, "policy": self._policy},
        )
        if self._policy is FailurePolicy.FAIL:
            text = f"the KV cache did not arrive: {failure}"
            self._fail(request, Failed(502, "transfer_failed", failure.reason.value, text))
            return
        request.mode = Mode.RECOMPUTED
        request.why = failure.reason.value
        if request.kept is not None and request.number is not None:
            # a cache for the kept tokens alone: the whole prompt needs a larger one, and waits for it
            self._pipeline.release(request)
            self._scheduler.place(request, Stage.WAITING)
        elif request.stage is Stage.PARKED:
            self._scheduler.place(request, Stage.PREFILLING)
        request.kept = None

    def _sent(self, request: Request, failure: TransferFailed | None) -> None:
        request.sending = False
        self._metrics.sent(None if failure is None else failure.reason)
        if request.stage is Stage.HELD:
            self._let_go(request)

    def _withdraw(self, transfer_id: str) -> None:
        """Whoever withdraws before the answer has closed the request too, but its end may come before that is seen."""
        for request in self._scheduler.requests():
            if request.sending and request.transfer and request.transfer.transfer_id == transfer_id:
                self._pipeline.cancel_send(request, "withdrawn")

    # ---- forward passes ----

    def _begin(self, work: Work) -> None:
        try:
            self._pipeline.compute(work)
        except Exception:
            _log.exception("a forward pass failed")
            self._break(work.requests)
            return
        for request in work.requests:
            request.under_way += 1
        if isinstance(work, Prefill):
            self._metrics.prompt_tokens.inc(work.span.stop - work.request.computed)
            work.request.computed = work.span.stop

    def _computed(self, computed: Computed) -> None:
        """A pass is over. Its requests may be too, since it was begun."""
        for request in computed.work.requests:
            request.under_way -= 1
        if computed.failure:
            _log.error("a forward pass failed: %s", computed.failure)
            self._break(computed.work.requests)
        elif isinstance(computed.work, Prefill):
            self._prefilled(computed.work.request, computed.tokens)
        else:
            for request, token in zip(computed.work.requests, computed.tokens, strict=True):
                if request.stage is Stage.RUNNING:
                    self._accept(request, token)
        for request in computed.work.requests:
            if request.stage is Stage.HELD:
                self._let_go(request)

    def _prefilled(self, request: Request, tokens: Sequence[int]) -> None:
        """A chunk of its prompt is computed; with the last one comes the first token."""
        if request.stage is not Stage.PREFILLING or not tokens:
            return
        self._scheduler.place(request, Stage.RUNNING)
        self._metrics.prompt(request.mode, request.why)
        self._accept(request, tokens[0])

    def _accept(self, request: Request, token: int) -> None:
        """Tell the client the next token, and end the request if it was the last one."""
        index = len(request.tokens)
        if index == 0:
            self._metrics.first_token_seconds.observe(time.monotonic() - request.arrived)
        self._metrics.generated_tokens.inc()
        request.tokens.append(token)
        reason: FinishReason | None = None
        if token in request.end_tokens:
            text, reason = request.text.finish(), FinishReason.STOP
        else:
            text = request.text.push(token)
            if len(request.tokens) >= request.max_tokens:
                reason = FinishReason.LENGTH
                # what is held back of a token that decode goes on from is decode's to tell
                text += "" if request.hands_over else request.text.finish()
            if request.text.stopped:
                reason = FinishReason.STOP
        request.sink(Delta(index, token, text))
        if reason is not None:
            self._metrics.ended(reason.value)
            self._retire(request)
            request.sink(Finished(reason, request.mode, request.why, request.cached_tokens(), request.loaded))

    # ---- the end ----

    def _cancel(self, request: Request) -> None:
        """Its client left before it had the end, which may have come meanwhile: then nobody will ask for its KV."""
        if request.stage is Stage.OVER:
            return
        self._drop_transfer(request, "the client went away")
        if request.stage is not Stage.HELD:
            self._metrics.ended("cancelled")
            self._retire(request)

    def _fail(self, request: Request, failure: Failed) -> None:
        self._metrics.ended("error")
        self._drop_transfer(request, failure.code)
        self._retire(request)
        request.sink(failure)

    def _break(self, requests: Iterable[Request]) -> None:
        """Fail those whose work raised, so that the others go on."""
        for request in requests:
            if request.stage not in (Stage.HELD, Stage.OVER):
                self._fail(request, Failed(500, "internal_error", "internal", "the engine failed; its log says why"))

    def _drop_transfer(self, request: Request, reason: str) -> None:
        if request.sending:
            self._pipeline.cancel_send(request, reason)
        if request.loading:
            self._pipeline.cancel_load(request, reason)

    def _retire(self, request: Request) -> None:
        """Nothing more is computed for it."""
        self._scheduler.place(request, Stage.HELD)
        self._let_go(request)

    def _let_go(self, request: Request) -> None:
        """A request that is over gives its blocks back once nothing uses them."""
        if request.in_use:
            return
        self._scheduler.place(request, Stage.OVER)
        if request.number is not None:
            self._pipeline.release(request)
