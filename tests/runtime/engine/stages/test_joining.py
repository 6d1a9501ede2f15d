"""A ring comes about between the stages of one group, whatever else connects, and in whatever order they start."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

import stage_nodes
from kvferry_runtime.engine.stages import links
from kvferry_runtime.engine.stages.node import RingNode
from kvferry_runtime.engine.stages.settings import RingSettings
from kvferry_runtime.errors import StageUnreachable, TransportUnavailable
from kvferry_runtime.transport.memory import MemoryNetwork
from kvferry_runtime.wire.handshake import Refusal
from stage_nodes import until

SHORT = 2.0
"""Long enough for the attempts that are to fail, on a busy machine too."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "RETRY_SECONDS", 0.02)


async def close(*nodes: RingNode) -> None:
    for each in nodes:
        await each.close(1)


@pytest.mark.parametrize(
    ("changes", "marks", "said", "refusal"),
    [
        ({"key": b"another key, as long"}, {}, "shared key: the peer does not know ours", Refusal.BY_PEER),
        ({"group": "ns/m/r/prefill/1"}, {}, "group: 'ns/m/r/prefill/.' here", Refusal.FINGERPRINT),
        ({"group": "ns/m/r/decode/0"}, {}, "group: 'ns/m/r/", Refusal.FINGERPRINT),
        ({"stage": 2}, {}, "link: 'stage . to stage .' here, 'stage . to stage .' at the peer", Refusal.FINGERPRINT),
        ({}, {"dtype": "fp16"}, "dtype: 'b?f?p?[0-9]*' here", Refusal.FINGERPRINT),
    ],
    ids=["key", "group", "role", "stage", "marks"],
)
async def test_who_does_not_belong_to_the_group_stays_out(
    changes: dict[str, Any], marks: dict[str, str], said: str, refusal: Refusal
) -> None:
    network = MemoryNetwork()
    settings = [stage_nodes.settings(3, stage, join_seconds=SHORT) for stage in range(3)]
    # a stranger in the place of stage 1
    strange = dataclasses.replace(settings[1], **changes)
    nodes = [
        stage_nodes.node(network, each, marks={"dtype": "bf16"} | (marks if each is strange else {}))
        for each in (settings[0], strange, settings[2])
    ]
    outcomes = await asyncio.gather(*(node.join() for node in nodes), return_exceptions=True)
    assert all(isinstance(outcome, StageUnreachable) for outcome in outcomes)
    with pytest.raises(StageUnreachable, match=said):
        raise outcomes[0]  # type: ignore[misc]
    assert nodes[1].links.door.refused[refusal] > 0
    await close(*nodes)


async def test_a_different_number_of_stages_is_refused_with_both_numbers() -> None:
    network = MemoryNetwork()
    nodes = [
        stage_nodes.node(network, stage_nodes.settings(count, stage, join_seconds=SHORT))
        for stage, count in ((0, 2), (1, 3))
    ]
    outcomes = await asyncio.gather(*(node.join() for node in nodes), return_exceptions=True)
    assert "stage-1 at stage-1:7402 refuses: stages: '3' here, '2' at the peer" in str(outcomes[0])
    await close(*nodes)


async def test_a_second_connection_of_the_same_stage_is_refused() -> None:
    network = MemoryNetwork()
    nodes = [stage_nodes.node(network, stage_nodes.settings(2, stage)) for stage in range(2)]
    await asyncio.gather(*(node.join() for node in nodes))
    twin = stage_nodes.settings(2, 0, host="elsewhere", join_seconds=SHORT)
    double = stage_nodes.node(network, twin)
    with pytest.raises(StageUnreachable, match="the stage before is connected already"):
        await double.join()
    assert nodes[1].links.door.refused[Refusal.CAPACITY] > 0
    assert nodes[1].links.outgoing is not None
    await close(*nodes, double)


async def test_strangers_do_not_disturb_a_ring() -> None:
    network = MemoryNetwork()
    nodes = [stage_nodes.node(network, stage_nodes.settings(2, stage)) for stage in range(2)]
    stranger = network.transport()
    listening = asyncio.gather(*(node.join() for node in nodes))
    await until(lambda: network._listeners, "a listener")
    for payload in (b"", b"GET / HTTP/1.1", bytes(1 << 16)):
        for _ in range(30):
            connection = await stranger.connect("stage-1", nodes[1]._settings.port, 1)
            connection.send_control(payload)
    await listening
    await until(lambda: nodes[1].links.door.refused[Refusal.CAPACITY], "refusals are counted")
    await stranger.close()
    await close(*nodes)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
async def test_stages_may_start_in_any_order(order: tuple[int, ...]) -> None:
    network = MemoryNetwork()
    nodes: dict[int, RingNode] = {}
    joining = []
    for stage in order:
        nodes[stage] = stage_nodes.node(network, stage_nodes.settings(3, stage))
        joining.append(asyncio.create_task(nodes[stage].join()))
        await asyncio.sleep(0.1)
        assert len(joining) == 3 or not any(task.done() for task in joining)
    async with asyncio.timeout(stage_nodes.SECONDS):
        await asyncio.gather(*joining)
    await close(*nodes.values())


@pytest.mark.parametrize("restarts", [0, 1])
async def test_a_stage_that_restarts_before_the_ring_is_complete_does_no_harm(restarts: int) -> None:
    """Stage 2 is late; meanwhile the link between 0 and 1 breaks, at either end."""
    network = MemoryNetwork()
    nodes = {stage: stage_nodes.node(network, stage_nodes.settings(3, stage)) for stage in (0, 1)}
    joining = {stage: asyncio.create_task(node.join()) for stage, node in nodes.items()}
    await until(lambda: nodes[1].links._incoming is not None, "the link from 0 to 1")
    await nodes[restarts].close(1)
    with pytest.raises(StageUnreachable, match=f"stage {restarts} was closed before its ring was complete"):
        await joining[restarts]
    await asyncio.sleep(0.05)
    for stage in (restarts, 2):
        nodes[stage] = stage_nodes.node(network, stage_nodes.settings(3, stage))
        joining[stage] = asyncio.create_task(nodes[stage].join())
    async with asyncio.timeout(stage_nodes.SECONDS):
        await asyncio.gather(*joining.values())
    await close(*nodes.values())


async def test_a_name_that_comes_late_is_awaited() -> None:
    """Case 37: it fails for twenty questions, half a second apart in production, and then works."""
    network = MemoryNetwork()
    asked: Counter[str] = Counter()

    async def lookup(host: str) -> list[str]:
        asked[host] += 1
        if host == "stage-1" and asked[host] <= 20:
            raise socket.gaierror(-2, "Name or service not known")
        return [host]

    nodes = [RingNode(stage_nodes.settings(2, stage), {}, 1024, network.transport(), lookup) for stage in range(2)]
    async with asyncio.timeout(stage_nodes.SECONDS):
        await asyncio.gather(*(node.join() for node in nodes))
    assert asked["stage-1"] == 21
    await close(*nodes)


async def test_a_name_that_never_comes_is_told() -> None:
    """Case 37."""

    async def lookup(host: str) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    settings = stage_nodes.settings(2, 0, join_seconds=SHORT)
    node = RingNode(settings, {}, 1024, MemoryNetwork().transport(), lookup)
    said = r"stage 1 cannot be reached: stage host stage-1 has no address \(.*not known\)"
    with pytest.raises(StageUnreachable, match=said):
        await node.join()
    await close(node)


async def test_a_name_gets_a_new_address_while_it_is_tried() -> None:
    """Case 37: a pod that is made anew has another address, which the other stages find without a restart."""
    network = MemoryNetwork()
    addresses = {"stage-0": "stage-0", "stage-1": "gone"}

    async def lookup(host: str) -> list[str]:
        return [addresses[host]]

    async def moved() -> None:
        await asyncio.sleep(0.2)
        addresses["stage-1"] = "10.0.0.9"

    settings = [stage_nodes.settings(2, 0), stage_nodes.settings(2, 1, host="10.0.0.9")]
    nodes = [RingNode(each, {}, 1024, network.transport(), lookup) for each in settings]
    async with asyncio.timeout(stage_nodes.SECONDS):
        await asyncio.gather(moved(), *(node.join() for node in nodes))
    await close(*nodes)


def missing(stage: int) -> Mapping[str, str]:
    return {
        "next": f"stage {(stage + 1) % 3} cannot be reached: cannot connect to stage-{(stage + 1) % 3}:7402: "
        "connection refused",
        "previous": f"stage {(stage - 1) % 3} \\(stage-{(stage - 1) % 3}\\) has not connected",
        "others": "both links of this stage are open, so two other stages do not reach each other",
    }


async def test_a_ring_that_does_not_come_about_says_what_is_missing() -> None:
    network = MemoryNetwork()
    # stage 2 listens and never dials on: it waits for a name without an address
    nodes = [stage_nodes.node(network, stage_nodes.settings(3, stage, join_seconds=SHORT)) for stage in (0, 1)]

    async def nowhere(host: str) -> list[str]:
        return []

    mute = RingNode(stage_nodes.settings(3, 2), {}, stage_nodes.ACTIVATION_BYTES, network.transport(), nowhere)
    waiting = asyncio.create_task(mute.join())
    outcomes = await asyncio.gather(*(node.join() for node in nodes), return_exceptions=True)
    with pytest.raises(StageUnreachable, match=f"not complete after {SHORT:g} s: {missing(0)['previous']}"):
        raise outcomes[0]  # type: ignore[misc]
    with pytest.raises(StageUnreachable, match=missing(1)["others"]):
        raise outcomes[1]  # type: ignore[misc]
    await close(*nodes, mute)
    with pytest.raises(StageUnreachable, match="closed before"):
        await waiting

    alone = stage_nodes.node(network, stage_nodes.settings(3, 0, join_seconds=SHORT))
    with pytest.raises(StageUnreachable, match=missing(0)["next"]):
        await alone.join()
    await close(alone)


async def test_an_address_that_is_taken_is_told_at_once() -> None:
    network = MemoryNetwork()
    settings: RingSettings = stage_nodes.settings(2, 0)
    await network.transport().listen(settings.host, settings.port, lambda connection: None)
    node = stage_nodes.node(network, settings)
    with pytest.raises(TransportUnavailable, match="address already in use"):
        await node.join()
    await close(node)
