"""One prompt between pods of which each holds some layers: who sends which of them to whom, and under which id.

A stage of prefill makes one offer for each stage of decode that shares layers with it; a stage of decode loads, under
an id of its own, from each stage of prefill that shares layers with it. Below that nothing knows of stages: a transfer
has one decode and one or several prefills.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from kvferry_contract.split import shared_layers
from kvferry_contract.transfer import TransferParams, stage_transfer
from kvferry_runtime.agent.base import FetchHandle, KvAgent, KvMemory, LoadResult, SendHandle
from kvferry_runtime.errors import KvferryError, LayoutError, Reason, TransferFailed
from kvferry_runtime.layout import layers_text


def offer_stages(
    agent: KvAgent,
    params: TransferParams,
    memory: KvMemory,
    tokens: int,
    held: range,
    decode: Sequence[range],
    on_done: Callable[[TransferFailed | None], None],
) -> SendHandle:
    """Offer what this stage of prefill holds to the stages of decode.

    Args:
        held: layers of this stage, global numbers. decode: those of each stage of decode.
        on_done: called exactly once, when no offer uses the memory any more; with the first failure, None if all were
            committed.

    Raises:
        LayoutError: the stages of decode do not hold every layer of this one, or as `KvAgent.offer`; `on_done` is not
            called.
        RingUnavailable: as `KvAgent.offer`.
    """
    shared = shared_layers(held, decode)
    if sum(len(each.layers) for each in shared) != len(held):
        found = ", ".join(layers_text(layers) for layers in decode)
        raise LayoutError(f"{layers_text(held)} are offered, the stages of decode hold {found}")
    if len(decode) == 1:
        return agent.offer(params, memory, tokens, on_done)
    send = StagedSend([each.layers for each in shared], on_done)
    for number, each in enumerate(shared):
        stage = replace(params, transfer_id=stage_transfer(params.transfer_id, each.peer, len(decode)))
        try:
            send.add(agent.offer(stage, memory, tokens, send.over, each.layers))
        except KvferryError as error:
            if number == 0:
                raise
            send.give_up(TransferFailed(Reason.NO_CONNECTOR, str(error)))
            break
    return send


def fetch_stage(
    agent: KvAgent,
    params: TransferParams,
    memory: KvMemory,
    token_start: int,
    token_stop: int,
    stage: int,
    decode: Sequence[range],
    prefill: Sequence[range],
    on_done: Callable[[LoadResult | TransferFailed], None],
) -> FetchHandle:
    """Load what this stage of decode holds, from the stages of prefill that share layers with it.

    Args:
        params: as the router wrote it, with a peer for each stage of prefill.
        stage: of this pod. decode, prefill: layers of each stage of the two roles, global numbers.

    Raises:
        LayoutError: as many peers as stages of prefill are needed; or as `KvAgent.fetch`. `on_done` is not called.
        RingUnavailable: as `KvAgent.fetch`.
    """
    if len(params.peers) != len(prefill):
        raise LayoutError(f"the transfer names {len(params.peers)} peers, prefill has {len(prefill)} stages")
    mine = replace(
        params,
        transfer_id=stage_transfer(params.transfer_id, stage, len(decode)),
        peers=tuple(params.peers[each.peer] for each in shared_layers(decode[stage], prefill)),
    )
    return agent.fetch(mine, memory, token_start, token_stop, on_done)


class StagedSend(SendHandle):
    """The offers of one prompt, one for each of `parts` (layers, global numbers), as one.

    When one of them fails, the others are cancelled: the prompt is of no use to a decode that lacks some layers.
    """

    def __init__(self, parts: Sequence[range], on_done: Callable[[TransferFailed | None], None]) -> None:
        self._parts = parts
        self._on_done = on_done
        self._sends: list[SendHandle] = []
        self._lock = threading.Lock()
        self._open = len(parts)
        self._failure: TransferFailed | None = None

    def add(self, send: SendHandle) -> None:
        """The offer of the next part, whose `on_done` is `over`."""
        with self._lock:
            self._sends.append(send)
            failure = self._failure
        if failure is not None:
            send.cancel(failure.message)

    def over(self, failure: TransferFailed | None) -> None:
        """An offer has ended; the last one ends the whole. From any thread."""
        self._ended(1, failure)

    def give_up(self, failure: TransferFailed) -> None:
        """The parts that have no offer yet will get none."""
        self._ended(len(self._parts) - len(self._sends), failure)

    def layer_final(self, layer: int, token_start: int, token_stop: int) -> None:
        for part, send in zip(self._parts, self._offers, strict=False):
            if layer in part:
                send.layer_final(layer, token_start, token_stop)
                return
        if not any(layer in part for part in self._parts):
            offered = ", ".join(layers_text(part) for part in self._parts)
            raise LayoutError(f"layer {layer} is final, offered are {offered}")

    def seal(self, first_token: int | None) -> None:
        for send in self._offers:
            send.seal(first_token)

    def cancel(self, reason: str) -> None:
        for send in self._offers:
            send.cancel(reason)

    @property
    def _offers(self) -> list[SendHandle]:
        """All offers; where one of them could not be made, those before it."""
        with self._lock:
            return self._sends.copy()

    def _ended(self, parts: int, failure: TransferFailed | None) -> None:
        with self._lock:
            self._open -= parts
            last = self._open == 0
            first_failure = failure is not None and self._failure is None
            self._failure = self._failure or failure
            outcome, others = self._failure, self._sends.copy()
        if first_failure and failure is not None:
            for send in others:
                send.cancel(failure.message)
        if last:
            self._on_done(outcome)
