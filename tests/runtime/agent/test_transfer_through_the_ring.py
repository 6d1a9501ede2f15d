"""The agent against a scripted sidecar: what a whole transfer looks like on the ring, and what ends it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from eventually import eventually
from kv_settings import Outcomes, kv_layout, transfer_config, transfer_params
from kvferry_contract.config import Role
from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.contiguous import ContiguousKv
from scripted_sidecar import Relay, ScriptedSidecar

TOKENS = 40
LAYERS = 8


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[HostAgent, ScriptedSidecar, HostAgent, ScriptedSidecar]]:
    """A prefill and a decode agent, each attached to a scripted sidecar of its own."""
    with ExitStack() as stack:
        ends: list[HostAgent | ScriptedSidecar] = []
        for role in (Role.PREFILL, Role.DECODE):
            folder = tmp_path / role.value
            folder.mkdir()
            sidecar = stack.enter_context(ScriptedSidecar(folder))
            agent = HostAgent(folder, role, transfer_config())
            stack.callback(agent.close, 5.0)
            agent.start(kv_layout(LAYERS), {"model": "tiny"}, lambda: 0.0)
            sidecar.attach()
            eventually(lambda agent=agent: agent.state().attached, "attached")
            ends += [agent, sidecar]
        yield tuple(ends)  # type: ignore[misc]


def _tensors(fill: int) -> list[np.ndarray]:
    return [np.full((2, TOKENS, 2, 8), fill, np.uint16) for _ in range(LAYERS)]


def test_no_layer_is_read_before_it_is_final(
    pair: tuple[HostAgent, ScriptedSidecar, HostAgent, ScriptedSidecar],
) -> None:
    """Case 33: a layer holds garbage until its event; each received layer must hold its own value, every round."""
    prefill, prefill_sidecar, decode, decode_sidecar = pair
    layout, dice = kv_layout(LAYERS), random.Random(33)
    for number in range(1000):
        source, target = _tensors(0xDEAD), _tensors(0)
        sent, loaded = Outcomes(), Outcomes()
        relay = Relay(prefill_sidecar, decode_sidecar)
        relay.start()
        offer = prefill.offer(transfer_params("prefill", number), ContiguousKv(layout, source), TOKENS, sent)
        decode.fetch(transfer_params("decode", number), ContiguousKv(layout, target), 0, TOKENS, loaded)
        for layer in range(LAYERS):
            if dice.random() < 0.1:
                time.sleep(dice.random() * 0.002)
            source[layer][:] = number + layer
            offer.layer_final(layer, 0, TOKENS)
        offer.seal(first_token=7)
        result = loaded.wait()
        assert isinstance(result, LoadResult) and result.first_token == 7
        assert sent.wait() is None
        relay.join()
        assert relay.error is None
        for layer, tensor in enumerate(target):
            assert (tensor == number + layer).all(), (number, layer)
    assert prefill.state().open_sends == 0
    assert decode.state().open_loads == 0
