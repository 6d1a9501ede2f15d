"""An agent without sidecar, ring or network, so that an engine can be tested alone.

All `LoopbackAgent`s of one `Loopback` see each other: a fetch is served from the offers with the same transfer id,
which together have its layers, by copying rows. Callbacks come from a thread of its own, as with the real agent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import (
    AgentState,
    FetchHandle,
    KvAgent,
    KvMemory,
    LoadResult,
    SendHandle,
)
from kvferry_runtime.agent.loopback_copy import Sink, Source, copy
from kvferry_runtime.codec.sparse.budget import Budget
from kvferry_runtime.errors import LayoutError, Reason, RingUnavailable, TransferFailed
from kvferry_runtime.layout import KvLayout
from kvferry_runtime.wire.coverage import misplaced


@dataclass(eq=False)
class _Offer(SendHandle):
    fabric: Loopback
    agent: LoopbackAgent
    params: TransferParams
    memory: KvMemory
    tokens: int
    layout: KvLayout
    on_done: Callable[[TransferFailed | None], None]
    expires: float
    final: dict[int, int] = field(default_factory=dict)
    sealed: bool = False
    first_token: int | None = None

    def layer_final(self, layer: int, token_start: int, token_stop: int) -> None:
        self.layout.shape(layer)
        if not self.final.get(layer, 0) == token_start <= token_stop <= self.tokens:
            raise LayoutError(f"layer {layer}: tokens {token_start} to {token_stop} cannot be next")
        self.final[layer] = token_stop

    def seal(self, first_token: int | None) -> None:
        if any(self.final.get(layer, 0) < self.tokens for layer in self.layout.layers):
            raise LayoutError("cannot seal: not every layer is final for every token")
        self.first_token, self.sealed = first_token, True
        self.fabric.changed()

    def cancel(self, reason: str) -> None:
        self.fabric.end(self, TransferFailed(Reason.CANCELLED, reason))

    @property
    def source(self) -> Source:
        return Source(self.layout, self.memory, self.tokens, self.first_token, self.agent.budget)


@dataclass(eq=False)
class _Fetch(FetchHandle):
    fabric: Loopback
    agent: LoopbackAgent
    params: TransferParams
    memory: KvMemory
    token_start: int
    token_stop: int
    layout: KvLayout
    on_done: Callable[[LoadResult | TransferFailed], None]
    expires: float

    def cancel(self, reason: str) -> None:
        self.fabric.end(self, TransferFailed(Reason.CANCELLED, reason))


class Loopback:
    """What the agents share. `fail` makes every later transfer fail, to test what an engine does then."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._open: list[_Offer | _Fetch] = []
        self._failure: Reason | None = None
        self._slow = False
        self._closed = False
        self._callbacks = ThreadPoolExecutor(1, thread_name_prefix="kvferry-loopback-done")
        self._thread = threading.Thread(target=self._run, name="kvferry-loopback", daemon=True)
        self._thread.start()

    def fail(self, reason: Reason | None) -> None:
        """Fail open and later transfers with this reason; None: serve them again."""
        with self._condition:
            self._failure = reason
            self._condition.notify()

    def collapse(self, slow: bool) -> None:
        """Bring engines that can go on from there only the first `resume_tokens` of a prompt, as over a slow link."""
        with self._condition:
            self._slow = slow

    def close(self) -> None:
        """Cancel what is open and stop the threads. Idempotent."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()
        self._callbacks.shutdown()

    def add(self, transfer: _Offer | _Fetch) -> None:
        with self._condition:
            if self._closed:
                raise RingUnavailable("this loopback is closed")
            self._open.append(transfer)
            self._condition.notify()

    def changed(self) -> None:
        with self._condition:
            self._condition.notify()

    def end(self, transfer: _Offer | _Fetch, outcome: LoadResult | TransferFailed | None) -> None:
        """Only the first call for a transfer counts."""
        with self._condition:
            if transfer in self._open:
                self._open.remove(transfer)
                self._callbacks.submit(transfer.on_done, outcome)  # type: ignore[arg-type]

    def open_of(self, agent: LoopbackAgent) -> list[_Offer | _Fetch]:
        with self._condition:
            return [transfer for transfer in self._open if transfer.agent is agent]

    def _run(self) -> None:
        with self._condition:
            while not self._closed:
                self._serve(time.monotonic())
                next_deadline = min((transfer.expires for transfer in self._open), default=None)
                self._condition.wait(None if next_deadline is None else max(0.0, next_deadline - time.monotonic()))
            for transfer in list(self._open):
                self.end(transfer, TransferFailed(Reason.CANCELLED, "the loopback was closed"))

    def _serve(self, now: float) -> None:
        for transfer in list(self._open):
            if self._failure is not None:
                self.end(transfer, TransferFailed(self._failure, "asked for by the test"))
            elif now >= transfer.expires:
                self.end(transfer, TransferFailed(Reason.DEADLINE, f"{transfer.params.deadline_ms} ms have passed"))
        offers: dict[str, list[_Offer]] = {}
        for offer in self._open:
            if isinstance(offer, _Offer) and offer.sealed:
                offers.setdefault(offer.params.transfer_id, []).append(offer)
        for fetch in [item for item in self._open if isinstance(item, _Fetch)]:
            self._bring(offers.get(fetch.params.transfer_id, []), fetch)

    def _bring(self, offers: list[_Offer], fetch: _Fetch) -> None:
        """As soon as the offers have each layer that is wanted; where they have too much nothing helps."""
        wanted = fetch.layout.layers
        brought = {f"offer {number}": offer.layout.layers for number, offer in enumerate(offers)}
        complete = sum(map(len, brought.values())) >= len(wanted)
        text = misplaced(brought, wanted) if complete else misplaced(brought | {"": range(0)}, wanted)
        if not complete and not text:
            return
        outcome: LoadResult | TransferFailed
        try:
            sink = Sink(fetch.layout, fetch.memory, fetch.token_start, fetch.token_stop)
            sources = [offer.source for offer in offers]
            outcome = TransferFailed(Reason.DENIED, text) if text else copy(sources, sink, self._slow)
        except Exception as error:
            outcome = TransferFailed(Reason.INTERNAL, f"{type(error).__name__}: {error}")
        for offer in offers:
            self.end(offer, outcome if isinstance(outcome, TransferFailed) else None)
        self.end(fetch, outcome)


class LoopbackAgent(KvAgent):
    """One engine's agent on a `Loopback`. budget: of a sparse method, None for all others."""

    def __init__(self, fabric: Loopback, budget: Budget | None = None) -> None:
        self.budget = budget
        self._fabric = fabric
        self._layout: KvLayout | None = None

    def start(self, layout: KvLayout, fingerprint: Mapping[str, str], engine_age: Callable[[], float]) -> None:
        self._layout = layout

    def offer(
        self,
        params: TransferParams,
        memory: KvMemory,
        tokens: int,
        on_done: Callable[[TransferFailed | None], None],
        layers: range | None = None,
    ) -> SendHandle:
        if tokens < 1:
            raise LayoutError(f"a prompt of {tokens} tokens cannot be offered: at least 1 is needed")
        expires = time.monotonic() + params.deadline_ms / 1000
        layout = self._started() if layers is None else self._started().part(layers)
        offer = _Offer(self._fabric, self, params, memory, tokens, layout, on_done, expires)
        self._fabric.add(offer)
        return offer

    def fetch(
        self,
        params: TransferParams,
        memory: KvMemory,
        token_start: int,
        token_stop: int,
        on_done: Callable[[LoadResult | TransferFailed], None],
    ) -> FetchHandle:
        expires = time.monotonic() + params.deadline_ms / 1000
        layout = self._started()
        fetch = _Fetch(self._fabric, self, params, memory, token_start, token_stop, layout, on_done, expires)
        self._fabric.add(fetch)
        return fetch

    def state(self) -> AgentState:
        transfers = self._fabric.open_of(self)
        sends = sum(isinstance(transfer, _Offer) for transfer in transfers)
        attached = self._layout is not None
        return AgentState(attached=attached, open_sends=sends, open_loads=len(transfers) - sends, lent_slots=0)

    def close(self, timeout: float) -> None:
        for transfer in self._fabric.open_of(self):
            transfer.cancel("the engine is shutting down")
        self._layout = None

    def _started(self) -> KvLayout:
        if self._layout is None:
            raise RingUnavailable("this agent is closed or was not started")
        return self._layout
