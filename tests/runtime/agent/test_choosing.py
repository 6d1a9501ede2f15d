"""Which tokens of a long prompt are kept is found out beside the agent's thread, which goes on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from eventually import eventually
from kv_settings import Outcomes, kv_layout, transfer_config, transfer_params
from kvferry_contract.config import Method, OverlapMode, Role
from kvferry_runtime.agent.base import SendHandle
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.codec.sparse.selection import Scores
from kvferry_runtime.errors import Reason, TransferFailed
from kvferry_runtime.ring.messages import Cancel, ChunksReady, Fill, Filled, Offer, SealOffer, Sent
from scripted_sidecar import ScriptedSidecar

LAYERS, TOKENS = 2, 100
LAYOUT = kv_layout(LAYERS)
PATIENCE_S = 120.0


class Gated(ContiguousKv):
    """Its scores come when the gate is open."""

    def __init__(self) -> None:
        super().__init__(LAYOUT, [np.ones((2, TOKENS, 2, 8), np.uint16) for _ in range(LAYERS)])
        self.gate = threading.Event()
        self.asked = threading.Event()
        self.failure: Exception | None = None

    def scores(self, layer: int) -> Scores:
        self.asked.set()
        assert self.gate.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        return np.arange(TOKENS, dtype=np.float32)


@pytest.fixture
def end(tmp_path: Path) -> Iterator[tuple[HostAgent, ScriptedSidecar]]:
    transfer = transfer_config(
        method=Method.SPARSE50, keep_exact_first=4, keep_exact_last=4, overlap=OverlapMode.LAYERWISE
    )
    with ScriptedSidecar(tmp_path) as sidecar:
        agent = HostAgent(tmp_path, Role.PREFILL, transfer)
        agent.start(LAYOUT, {"model": "tiny"}, lambda: 0.0)
        sidecar.attach()
        eventually(lambda: agent.state().attached, "attached")
        yield agent, sidecar
        agent.close(5.0)


def offered(
    end: tuple[HostAgent, ScriptedSidecar], number: int, memory: Gated, done: Outcomes
) -> tuple[SendHandle, str, list[int]]:
    """A prompt that is computed; its chunks of layer 0."""
    agent, sidecar = end
    handle = agent.offer(transfer_params("prefill", number), memory, TOKENS, done)
    transfer_id = sidecar.expect(Offer).transfer_id
    handle.layer_final(0, 0, TOKENS)
    ready = sidecar.expect(ChunksReady)
    return handle, transfer_id, [chunk.sequence for chunk in ready.chunks]


def test_others_are_served_while_one_is_looked_at(end: tuple[HostAgent, ScriptedSidecar]) -> None:
    _, sidecar = end
    slow, quick = Gated(), Gated()
    quick.gate.set()
    _, first, chunks = offered(end, 1, slow, Outcomes())
    sidecar.send(Fill(first, 0, chunks[0], 0))
    assert slow.asked.wait(PATIENCE_S)
    _, second, others = offered(end, 2, quick, Outcomes())
    sidecar.send(Fill(second, 1, others[0], 0))
    answer = sidecar.expect(Filled)
    assert (answer.transfer_id, answer.slot) == (second, 1)
    assert answer.wire_bytes > 0
    slow.gate.set()
    answer = sidecar.expect(Filled)
    assert (answer.transfer_id, answer.slot) == (first, 0)
    assert answer.wire_bytes > 0


def test_memory_comes_back_when_nobody_looks_at_it_any_more(end: tuple[HostAgent, ScriptedSidecar]) -> None:
    """Case 43: the engine hears of the end of a cancelled send, but only afterwards; its chunk is not written."""
    _, sidecar = end
    memory, done = Gated(), Outcomes()
    handle, transfer_id, chunks = offered(end, 1, memory, done)
    sidecar.send(Fill(transfer_id, 3, chunks[0], 0))
    assert memory.asked.wait(PATIENCE_S)
    handle.cancel("not wanted")
    sidecar.expect(Cancel)
    assert done.calls == 0
    memory.gate.set()
    failure = done.wait()
    assert isinstance(failure, TransferFailed) and failure.reason is Reason.CANCELLED
    answer = sidecar.expect(Filled)
    assert (answer.slot, answer.wire_bytes) == (3, 0)


def test_scores_that_cannot_be_had_end_the_transfer(end: tuple[HostAgent, ScriptedSidecar]) -> None:
    _, sidecar = end
    memory, done = Gated(), Outcomes()
    memory.failure = RuntimeError("no attention was noted")
    memory.gate.set()
    _, transfer_id, chunks = offered(end, 1, memory, done)
    sidecar.send(Fill(transfer_id, 0, chunks[0], 0))
    assert sidecar.expect(Filled).wire_bytes == 0
    failure = done.wait()
    assert isinstance(failure, TransferFailed) and "no attention was noted" in failure.message


def test_a_layer_is_looked_at_once(end: tuple[HostAgent, ScriptedSidecar]) -> None:
    _, sidecar = end
    memory, done = Gated(), Outcomes()
    memory.gate.set()
    handle, transfer_id, chunks = offered(end, 1, memory, done)
    assert len(chunks) > 1
    for slot, sequence in enumerate(chunks):
        sidecar.send(Fill(transfer_id, slot, sequence, 0))
        assert sidecar.expect(Filled).wire_bytes > 0
        memory.failure = RuntimeError("asked twice")
    memory.failure = None
    handle.layer_final(1, 0, TOKENS)
    handle.seal(None)
    sidecar.expect(ChunksReady)
    sidecar.expect(SealOffer)
    sidecar.send(Sent(transfer_id=transfer_id, committed=True, reason="", message=""))
    assert done.wait() is None
