"""The agent for tests of engines keeps the promises of the real one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from kv_settings import Outcomes, kv_layout, transfer_params
from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.agent.loopback import Loopback, LoopbackAgent
from kvferry_runtime.agent.staged import fetch_stage, offer_stages
from kvferry_runtime.errors import LayoutError, Reason, RingUnavailable
from kvferry_runtime.layout import KvLayout

TOKENS = 6
LAYOUT = kv_layout(2)


@pytest.fixture
def fabric() -> Iterator[Loopback]:
    fabric = Loopback()
    yield fabric
    fabric.close()


@pytest.fixture
def pair(fabric: Loopback) -> tuple[LoopbackAgent, LoopbackAgent]:
    agents = LoopbackAgent(fabric), LoopbackAgent(fabric)
    for agent in agents:
        agent.start(LAYOUT, {}, lambda: 0.0)
    return agents


def memory(fill: int) -> tuple[ContiguousKv, list[np.ndarray]]:
    tensors = [np.full((2, TOKENS, 2, 8), fill, np.uint16) for _ in LAYOUT.layers]
    return ContiguousKv(LAYOUT, tensors), tensors


def test_a_prompt_of_no_tokens_is_refused(pair: tuple[LoopbackAgent, LoopbackAgent]) -> None:
    with pytest.raises(LayoutError, match="at least 1"):
        pair[0].offer(transfer_params("prefill"), memory(7)[0], 0, Outcomes())


@pytest.mark.parametrize("fetch_first", [True, False])
def test_a_transfer(pair: tuple[LoopbackAgent, LoopbackAgent], fetch_first: bool) -> None:
    prefill, decode = pair
    source, _ = memory(7)
    target, tensors = memory(0)
    sent, loaded = Outcomes(), Outcomes()
    if fetch_first:
        decode.fetch(transfer_params("decode"), target, 1, TOKENS, loaded)
    offer = prefill.offer(transfer_params("prefill"), source, TOKENS, sent)
    for layer in LAYOUT.layers:
        offer.layer_final(layer, 0, TOKENS)
    with pytest.raises(LayoutError):
        offer.layer_final(0, 0, 1)
    offer.seal(3)
    if not fetch_first:
        decode.fetch(transfer_params("decode"), target, 1, TOKENS, loaded)
    result = loaded.wait()
    assert isinstance(result, LoadResult)
    assert (result.first_token, result.raw_bytes) == (3, 2 * (TOKENS - 1) * 64)
    assert sent.wait() is None
    assert all((tensor[:, 1:] == 7).all() and not tensor[:, 0].any() for tensor in tensors)
    offer.cancel("late")
    assert (sent.calls, loaded.calls) == (1, 1)
    assert prefill.state().open_sends == decode.state().open_loads == 0


MODEL = [LAYOUT.shapes[0]] * 5


def stage(fabric: Loopback, layers: range, fill: int) -> tuple[LoopbackAgent, ContiguousKv, list[np.ndarray]]:
    """An agent of a pod with these layers; its memory holds `fill` and the layer's number."""
    layout = KvLayout.stage(MODEL, layers)
    agent = LoopbackAgent(fabric)
    agent.start(layout, {}, lambda: 0.0)
    tensors = [np.full((2, TOKENS, 2, 8), fill and fill + layer, np.uint16) for layer in layers]
    return agent, ContiguousKv(layout, tensors), tensors


def test_stages_on_both_sides(fabric: Loopback) -> None:
    """Case 36."""
    prefill, decode = [range(2), range(2, 5)], [range(1), range(1, 3), range(3, 5)]
    sent, loaded = [Outcomes() for _ in prefill], [Outcomes() for _ in decode]
    found = {}
    for number, layers in enumerate(decode):
        agent, memory, tensors = stage(fabric, layers, 0)
        params = replace(transfer_params("decode"), peers=("p0:1", "p1:1"))
        fetch_stage(agent, params, memory, 0, TOKENS, number, decode, prefill, loaded[number])
        found |= dict(zip(layers, tensors, strict=True))
    for layers, done in zip(prefill, sent, strict=True):
        agent, memory, _ = stage(fabric, layers, 100)
        send = offer_stages(agent, transfer_params("prefill"), memory, TOKENS, layers, decode, done)
        for layer in layers:
            send.layer_final(layer, 0, TOKENS)
        send.seal(3 if layers.stop == 5 else None)
    results = [done.wait() for done in loaded]
    assert [result.first_token for result in results] == [None, 3, 3]
    assert [done.wait() for done in sent] == [None, None]
    assert {layer: int(tensor.max()) for layer, tensor in found.items()} == {layer: 100 + layer for layer in range(5)}
    assert all((tensor == tensor.max()).all() for tensor in found.values())


def test_offers_that_overlap_fail_the_load(fabric: Loopback) -> None:
    loaded = Outcomes()
    agent, memory, _ = stage(fabric, range(5), 0)
    agent.fetch(transfer_params("decode"), memory, 0, TOKENS, loaded)
    for layers in (range(3), range(2, 5)):
        prefill, source, _ = stage(fabric, layers, 100)
        send = prefill.offer(transfer_params("prefill"), source, TOKENS, Outcomes())
        for layer in layers:
            send.layer_final(layer, 0, TOKENS)
        send.seal(None)
    failed = loaded.wait()
    assert failed.reason is Reason.DENIED and "both have layer 2" in failed.message


def test_a_seal_needs_every_layer(pair: tuple[LoopbackAgent, LoopbackAgent]) -> None:
    offer = pair[0].offer(transfer_params("prefill"), memory(1)[0], TOKENS, Outcomes())
    with pytest.raises(LayoutError, match="cannot seal"):
        offer.seal(None)


def test_cancel_deadline_failure_and_close(fabric: Loopback, pair: tuple[LoopbackAgent, LoopbackAgent]) -> None:
    prefill, decode = pair
    cancelled, late, failed, closed = Outcomes(), Outcomes(), Outcomes(), Outcomes()
    decode.fetch(transfer_params("decode", 1), memory(0)[0], 0, TOKENS, cancelled).cancel("gone")
    assert cancelled.wait().reason is Reason.CANCELLED
    decode.fetch(transfer_params("decode", 2, deadline_ms=1), memory(0)[0], 0, TOKENS, late)
    assert late.wait().reason is Reason.DEADLINE
    fabric.fail(Reason.PEER_LOST)
    prefill.offer(transfer_params("prefill", 3), memory(0)[0], TOKENS, failed)
    assert failed.wait().reason is Reason.PEER_LOST
    fabric.fail(None)
    prefill.offer(transfer_params("prefill", 4), memory(0)[0], TOKENS, closed)
    assert prefill.state().open_sends == 1
    prefill.close(1.0)
    assert closed.wait().reason is Reason.CANCELLED
    with pytest.raises(RingUnavailable):
        prefill.offer(transfer_params("prefill", 5), memory(0)[0], TOKENS, Outcomes())
    assert [done.calls for done in (cancelled, late, failed, closed)] == [1, 1, 1, 1]
