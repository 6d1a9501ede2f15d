"""The same over UCX, two cores in one process."""

from __future__ import annotations

import pytest

from kvferry_contract.config import Role, TransportKind
from kvferry_runtime.ring.messages import Loaded, LoadFailed, Sent
from kvferry_runtime.transport.ucx import UcxTransport
from scripted_agent import Prompt
from sidecar_pods import World, same, transfer_id, until


@pytest.mark.parametrize("kind", [TransportKind.TCP, TransportKind.SHM])
async def test_every_byte_arrives(pods: World, kind: TransportKind) -> None:
    options = {"chunk_bytes": 1 << 16, "tick": 0.2}
    prefill = await pods.pod(Role.PREFILL, transport=UcxTransport(kind), **options)
    decode = await pods.pod(Role.DECODE, transport=UcxTransport(kind), **options)
    for number, tokens in enumerate((1, 2048, 20_000)):
        prompt = Prompt(tokens, range(4), seed=number)
        prefill.agent.send(transfer_id(number), prompt)
        decode.agent.fetch(transfer_id(number), [prefill.peer], tokens)
        assert isinstance(await decode.agent.end(transfer_id(number)), Loaded)
        assert same(decode.agent, transfer_id(number), prompt)
        assert isinstance(end := await prefill.agent.end(transfer_id(number)), Sent) and end.committed
    lanes = prefill.record(transfer_id(1))["lanes"]
    assert lanes and all(lane.startswith("tcp:") == (kind is TransportKind.TCP) for lane in lanes), lanes
    await until(lambda: prefill.slots() == {"slots": 16, "free": 16})
    assert decode.slots() == {"slots": 16, "free": 8, "posted": 8}


async def test_a_peer_that_goes_away_gives_every_slot_back(pods: World) -> None:
    options = {"chunk_bytes": 1 << 16, "tick": 0.2}
    prefill = await pods.pod(Role.PREFILL, transport=UcxTransport(TransportKind.TCP), **options)
    decode = await pods.pod(Role.DECODE, transport=UcxTransport(TransportKind.TCP), **options)
    decode.agent.holding = True
    prefill.agent.send(transfer_id(1), Prompt(20_000, range(4)))
    decode.agent.fetch(transfer_id(1), [prefill.peer], 20_000)
    await until(lambda: decode.agent.held > 0)
    await prefill.core.close()
    decode.agent.release()
    assert isinstance(end := await decode.agent.end(transfer_id(1)), LoadFailed) and end.reason == "peer_lost"
    await until(lambda: decode.slots() == {"slots": 16, "free": 16})
