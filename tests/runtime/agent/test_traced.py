"""A timeline of the agents' part: every layer and chunk is in it once, in the order in which things happened."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from eventually import eventually
from kv_settings import Outcomes, kv_layout, transfer_config, transfer_params
from kvferry_contract.config import OverlapMode, Role
from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.trace.events import Event, Phase
from kvferry_runtime.trace.recorder import Recorder
from scripted_sidecar import Relay, ScriptedSidecar

TOKENS, LAYERS = 40, 4
LAYER_SECONDS = 0.005


@pytest.fixture
def events(tmp_path: Path) -> dict[Role, tuple[Event, ...]]:
    """Of a transfer in which each layer takes its time, as both agents recorded it."""
    layout = kv_layout(LAYERS)
    recorders, agents, sidecars = {}, {}, {}
    for role in (Role.PREFILL, Role.DECODE):
        folder = tmp_path / role.value
        folder.mkdir()
        sidecars[role] = ScriptedSidecar(folder)
        recorders[role] = Recorder(role.value)
        config = transfer_config(overlap=OverlapMode.LAYERWISE)
        agents[role] = HostAgent(folder, role, config, recorder=recorders[role])
    with sidecars[Role.PREFILL], sidecars[Role.DECODE], ExitStack() as stack:
        for role, agent in agents.items():
            stack.callback(agent.close, 5.0)
            agent.start(layout, {"model": "tiny"}, lambda: 0.0)
            sidecars[role].attach()
            eventually(lambda agent=agent: agent.state().attached, "attached")
        _move(agents, sidecars)
    return {role: recorder.trace().events for role, recorder in recorders.items()}


def _move(agents: dict[Role, HostAgent], sidecars: dict[Role, ScriptedSidecar]) -> None:
    layout = kv_layout(LAYERS)
    source = [np.full((2, TOKENS, 2, 8), layer, np.uint16) for layer in range(LAYERS)]
    target = [np.zeros((2, TOKENS, 2, 8), np.uint16) for _ in range(LAYERS)]
    sent, loaded = Outcomes(), Outcomes()
    relay = Relay(sidecars[Role.PREFILL], sidecars[Role.DECODE])
    relay.start()
    params = transfer_params("prefill", 1)
    offer = agents[Role.PREFILL].offer(params, ContiguousKv(layout, source), TOKENS, sent)
    agents[Role.DECODE].fetch(transfer_params("decode", 1), ContiguousKv(layout, target), 0, TOKENS, loaded)
    for layer in range(LAYERS):
        time.sleep(LAYER_SECONDS)
        offer.layer_final(layer, 0, TOKENS)
    offer.seal(first_token=7)
    assert isinstance(loaded.wait(), LoadResult) and sent.wait() is None
    relay.join()
    assert all((tensor == layer).all() for layer, tensor in enumerate(target)), "recording changes nothing"


def test_every_layer_and_chunk_is_there_once(events: dict[Role, tuple[Event, ...]]) -> None:
    prefill = Counter(event.phase for event in events[Role.PREFILL])
    chunks = prefill[Phase.ENCODED]
    assert chunks >= LAYERS
    # the last layer's own part, then what follows it until the end of the pass
    assert prefill == {Phase.COMPUTED: LAYERS + 1, Phase.GATHERED: chunks, Phase.ENCODED: chunks}
    assert Counter(event.phase for event in events[Role.DECODE]) == {Phase.DECODED: chunks}
    numbers = [[e.sequence for e in events[role] if e.phase is phase]
               for role, phase in ((Role.PREFILL, Phase.ENCODED), (Role.DECODE, Phase.DECODED))]  # fmt: skip
    assert [sorted(found) for found in numbers] == [list(range(chunks))] * 2


def test_things_follow_each_other_as_they_happened(events: dict[Role, tuple[Event, ...]]) -> None:
    every = [*events[Role.PREFILL], *events[Role.DECODE]]
    assert all(event.began_ns <= event.ended_ns for event in every)
    assert {event.transfer for event in every} == {transfer_params("prefill", 1).transfer_id}
    for layer in range(LAYERS):
        at = {phase: [e for e in every if e.phase is phase and layer in e.layers] for phase in Phase}
        assert min(e.seconds for e in at[Phase.COMPUTED][:1]) >= LAYER_SECONDS
        final = at[Phase.COMPUTED][0].ended_ns
        assert final <= min(e.began_ns for e in at[Phase.GATHERED])
        for gathered, encoded, decoded in zip(at[Phase.GATHERED], at[Phase.ENCODED], at[Phase.DECODED], strict=True):
            assert gathered.ended_ns == encoded.began_ns
            assert encoded.ended_ns <= decoded.began_ns
            assert gathered.size == decoded.size > 0
