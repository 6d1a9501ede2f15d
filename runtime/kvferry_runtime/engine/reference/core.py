"""The life of requests in the engine: admission, transfers, forward passes, tokens, the end. No threads in here.

Blocks come back exactly once, by `_retire` and what follows it: a request that is over but whose blocks the agent may
still touch is *held* until the agent's last word, everything else gives them back before its client hears the end.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable

from kvferry_contract.config import FailurePolicy
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import KvAgent, LoadResult
from kvferry_runtime.codec.sparse.budget import Budget
from kvferry_runtime.engine.reference.kv import KvPool
from kvferry_runtime.engine.reference.messages import Cancel, Loaded, Message, Sent, Submit, Withdraw
from kvferry_runtime.engine.reference.metrics import EngineMetrics
from kvferry_runtime.engine.reference.request import (
    Delta,
    Failed,
    Finished,
    FinishReason,
    Mode,
    Request,
    Stage,
)
from kvferry_runtime.engine.reference.runner import PREFILL_CHUNK, DecodeRow, Runner
from kvferry_runtime.engine.reference.sampling import sample
from kvferry_runtime.engine.reference.scheduler import Decode, Prefill, Scheduler
from kvferry_runtime.errors import KvferryError, Reason, TransferFailed

MAX_ADMITTED = 64
"""Requests that are parked, prefilling or running at a time; more of them wait."""
PARKED_SHARE = 0.25
"""Of its transfer's deadline, for which a parked request may keep an engine idle that has others waiting."""

_log = logging.getLogger(__name__)


class EngineCore:
    """Called by one thread alone, except `counts`.

    Args:
        agent: None where there is no sidecar.
        budget: of a sparse method, None for all others.
        post: brings the agent's words back into that thread, as messages for `take`.
        beat: called whenever there is progress.
    """

    def __init__(
        self,
        runner: Runner,
        pool: KvPool,
        agent: KvAgent | None,
        policy: FailurePolicy,
        budget: Budget | None,
        metrics: EngineMetrics,
        post: Callable[[Message], None],
        beat: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._pool = pool
        self._agent = agent
        self._policy = policy
        self._budget = budget
        self._metrics = metrics
        self._post = post
        self._beat = beat
        self._scheduler = Scheduler(MAX_ADMITTED)

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
            case Withdraw(transfer_id):
                self._withdraw(transfer_id)

    def turn(self) -> bool:
        """Admit what fits and compute one pass; whether there was anything to compute."""
        self._expire()
        while request := self._scheduler.admissible(self._pool.free):
            try:
                self._admit(request)
            except Exception:
                _log.exception("a request could not be admitted")
                self._break([request])
        work = self._scheduler.next()
        if work is None:
            self._unpark()
            return False
        try:
            if isinstance(work, Prefill):
                self._prefill(work.request)
            else:
                self._decode(work)
        except Exception:
            _log.exception("a forward pass failed")
            self._break([work.request] if isinstance(work, Prefill) else work.requests)
        return True

    def abandon(self, message: str) -> None:
        """Fail everything that is open; what the agent holds stays held."""
        for request in self._scheduler.requests():
            if request.stage is not Stage.HELD:
                self._fail(request, Failed(503, "unavailable", "draining", message))

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
        request.kv = self._pool.reserve(request.blocks)
        if request.transfer is None or request.mode is Mode.RECOMPUTED:
            self._scheduler.place(request, Stage.PREFILLING)
        elif request.hands_over:
            self._scheduler.place(request, Stage.PREFILLING)
            self._offer(request, request.transfer)
        else:
            self._scheduler.place(request, Stage.PARKED)
            request.parked = time.monotonic()
            self._fetch(request, request.transfer)

    def _kept(self, request: Request) -> int | None:
        """Tokens of its prompt that a transfer carries, None for all."""
        tokens = len(request.prompt)
        return self._budget.kept(tokens) if self._budget is not None and self._budget.evicts(tokens) else None

    def _offer(self, request: Request, transfer: TransferParams) -> None:
        assert request.kv is not None
        observed = None if self._kept(request) is None else request.kv.attention_mass(len(request.prompt))
        try:
            if self._agent is None:
                raise KvferryError("this engine runs without a sidecar")
            request.send = self._agent.offer(
                self._remaining(request, transfer),
                request.kv.share() if observed is None else request.kv.share_observed(observed),
                len(request.prompt),
                lambda failure: self._post(Sent(request, failure)),
            )
        except KvferryError as error:
            # decode learns it from the sidecar's silence; this engine's own answer needs no transfer
            _log.warning("KV cannot be offered: %s", error, extra={"transfer_id": transfer.transfer_id})
            self._metrics.sent(Reason.NO_CONNECTOR)
            return
        request.observed = observed

    def _fetch(self, request: Request, transfer: TransferParams) -> None:
        assert request.kv is not None
        whole = self._policy is FailurePolicy.FAIL or request.kept is not None
        try:
            if self._agent is None:
                raise KvferryError("this engine runs without a sidecar")
            request.fetch = self._agent.fetch(
                self._remaining(request, transfer),
                request.kv.share(0 if whole else PREFILL_CHUNK),
                0,
                len(request.prompt),
                lambda result: self._post(Loaded(request, result)),
            )
        except KvferryError as error:
            self._load_failed(request, TransferFailed(Reason.NO_CONNECTOR, str(error)))

    def _unpark(self) -> None:
        """Compute the oldest parked prompt here if it keeps the others from their blocks while nothing is computed.

        Prefill may in turn be full of KV that those others have yet to fetch. Where the two engines admitted their
        requests in another order, neither would go on before the deadlines.
        """
        oldest = next(iter(self._scheduler.requests([Stage.PARKED])), None)
        if oldest is None or oldest.given_up or not self._scheduler.requests([Stage.WAITING]):
            return
        assert oldest.transfer is not None and oldest.fetch is not None
        if time.monotonic() - oldest.parked >= PARKED_SHARE * oldest.transfer.deadline_ms / 1000:
            oldest.given_up = True
            oldest.fetch.cancel(Reason.NO_CAPACITY.value)

    def _remaining(self, request: Request, transfer: TransferParams) -> TransferParams:
        """The deadline counts from the request's arrival, not from its admission."""
        waited_ms = int((time.monotonic() - request.arrived) * 1000)
        return dataclasses.replace(transfer, deadline_ms=max(1, transfer.deadline_ms - waited_ms))

    # ---- transfers ----

    def _loaded(self, request: Request, result: LoadResult | TransferFailed) -> None:
        request.fetch = None
        if request.stage is Stage.HELD:
            self._release(request)
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
        if first is None or not 0 <= first < self._runner.model.vocabulary:
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
        if request.kept is not None and request.kv is not None:
            # a cache for the kept tokens alone: the whole prompt needs a larger one, and waits for it
            self._pool.release(request.kv)
            request.kv = None
            self._scheduler.place(request, Stage.WAITING)
        elif request.stage is Stage.PARKED:
            self._scheduler.place(request, Stage.PREFILLING)
        request.kept = None

    def _sent(self, request: Request, failure: TransferFailed | None) -> None:
        request.send = None
        self._metrics.sent(None if failure is None else failure.reason)
        if request.stage is Stage.HELD:
            self._release(request)

    def _withdraw(self, transfer_id: str) -> None:
        """Whoever withdraws before the answer has closed the request too, but its end may come before that is seen."""
        for request in self._scheduler.requests():
            if request.send is not None and request.transfer and request.transfer.transfer_id == transfer_id:
                request.send.cancel("withdrawn")

    # ---- forward passes ----

    def _prefill(self, request: Request) -> None:
        assert request.kv is not None
        start = request.computed

        def layer_final(layer: int, first: int, last: int) -> None:
            self._beat()
            if request.send is not None:
                request.send.layer_final(layer, first, last)

        request.computed, logits = self._runner.prefill(
            request.kv, request.prompt, start, layer_final, request.observed
        )
        self._metrics.prompt_tokens.inc(request.computed - start)
        if logits is None:
            return
        first_token = sample(logits, request.sampling, 0)
        if request.send is not None:
            request.send.seal(first_token)
        self._scheduler.place(request, Stage.RUNNING)
        self._metrics.prompt(request.mode, request.why)
        self._accept(request, first_token)

    def _decode(self, work: Decode) -> None:
        batch = []
        for request in work.requests:
            assert request.kv is not None
            position = len(request.prompt) + len(request.tokens) - 1
            batch.append(DecodeRow(request.kv, request.tokens[-1], position, position - request.evicted))
        for request, logits in zip(work.requests, self._runner.decode(batch), strict=True):
            self._accept(request, sample(logits, request.sampling, len(request.tokens)))

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
        for handle in (request.send, request.fetch):
            if handle is not None:
                handle.cancel(reason)

    def _retire(self, request: Request) -> None:
        """Nothing more is computed for it."""
        if request.agent_holds:
            self._scheduler.place(request, Stage.HELD)
        else:
            self._release(request)

    def _release(self, request: Request) -> None:
        self._scheduler.place(request, Stage.OVER)
        request.observed = None
        if request.kv is not None:
            self._pool.release(request.kv)
            request.kv = None
