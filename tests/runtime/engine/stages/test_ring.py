"""A ring carries messages in order and bytes unchanged, and ends as a whole, once, with the name of who ended it."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

import stage_nodes
from kvferry_runtime.engine.stages import inbound, link
from kvferry_runtime.engine.stages.link_messages import Carry, Description, Ended, encode
from kvferry_runtime.engine.stages.messages import CancelLoad, Loaded, Place, PrefillPass, Ready, Release, Result
from kvferry_runtime.engine.stages.ring import in_flight
from kvferry_runtime.transport.base import Transport
from kvferry_runtime.transport.faulty import Fault, FaultKind, FaultPlan, FaultyTransport, Way
from stage_nodes import ScriptedStage, activation, ring_of, until

TICK = 0.05


def prefill(number: int) -> PrefillPass:
    return PrefillPass(number, 1, 0, 2, None)


def faults(stage: int, plan: FaultPlan) -> dict[str, object]:
    """Arguments of `ring_of`: this stage's transport has these faults."""

    def wrap(each: int, transport: Transport) -> Transport:
        return FaultyTransport(transport, plan) if each == stage else transport

    return {"wrap": wrap}


async def lost_everywhere(stages: list[ScriptedStage], but: int | None = None) -> set[str]:
    """What every stage (but one) was told, once each."""
    watched = [each for each in stages if each.stage != but]
    await until(lambda: all(each.lost for each in watched), "every stage learns that the group ended")
    assert all(len(each.lost) == 1 for each in watched)
    return {each.lost[0] for each in watched}


@pytest.mark.parametrize("count", [2, 3, 4])
async def test_passes_go_round_with_their_activations(count: int) -> None:
    passes = 3 * in_flight(count)
    async with ring_of(count) as stages:
        for number in range(passes):
            await until(lambda n=number: n - len(stages[0].numbers()) < in_flight(count), "a result")
            stages[0].node.send(prefill(number), activation(number))
        await until(lambda: len(stages[0].numbers()) == passes, "all results")
        assert [message for message, _ in stages[0].heard] == [
            Result(number, [number + count - 2]) for number in range(passes)
        ]
        for stage in stages[1:]:
            for number, (message, array) in enumerate(stage.heard):
                assert message == prefill(number)
                np.testing.assert_array_equal(array, activation(number) + stage.stage - 1)


@pytest.mark.parametrize("count", [2, 3, 4])
async def test_commands_reach_every_stage_and_reports_the_first_alone(count: int) -> None:
    commands = [Place(1, 4, 60, None, None), CancelLoad(1, "deadline"), Release(1)]
    async with ring_of(count) as stages:
        for command in commands:
            stages[0].node.send(command, None)
        for stage in stages:
            stage.node.send(Ready(stage.stage, 10 + stage.stage, 8), None)
            stage.node.send(Loaded(stage.stage, 1, None, None), None)
        await until(lambda: len(stages[0].heard) == 2 * count, "reports of all stages")
        await until(lambda: all(len(stage.heard) == len(commands) for stage in stages[1:]), "all commands")
        assert [[message for message, _ in stage.heard] for stage in stages[1:]] == [commands] * (count - 1)
        for kind in (Ready, Loaded):
            said = sorted(message.stage for message, _ in stages[0].heard if isinstance(message, kind))
            assert said == list(range(count))


async def test_a_command_does_not_wait_for_the_passes_before_it() -> None:
    async with ring_of(3) as stages:
        stages[1].start = None  # type: ignore[assignment]
        stages[1].node.start(lambda message, given: None, stages[1].lost.append)
        stages[0].node.send(prefill(0), activation(0))
        stages[0].node.send(Release(9), None)
        await until(lambda: stages[2].heard, "the command behind a stage that still computes")
        assert [message for message, _ in stages[2].heard] == [Release(9)]


async def test_messages_behind_an_activation_wait_for_it() -> None:
    plan = FaultPlan([Fault(FaultKind.DELAY, Way.DATA, first=0, seconds=0.3)])
    async with ring_of(2, **faults(0, plan)) as stages:  # type: ignore[arg-type]
        stages[0].node.send(prefill(0), activation(0))
        stages[0].node.send(Release(1), None)
        await until(lambda: len(stages[1].heard) == 2, "both messages")
        assert [message for message, _ in stages[1].heard] == [prefill(0), Release(1)]


async def test_what_comes_before_anybody_listens_is_kept() -> None:
    network = stage_nodes.MemoryNetwork()
    nodes = [stage_nodes.node(network, stage_nodes.settings(2, stage)) for stage in range(2)]
    stages = [ScriptedStage(node, stage, 2) for stage, node in enumerate(nodes)]
    await asyncio.gather(*(node.join() for node in nodes))
    nodes[1].send(Ready(1, 10, 8), None)
    await until(lambda: nodes[0]._held, "the message is there")
    stages[0].start()
    assert [message for message, _ in stages[0].heard] == [Ready(1, 10, 8)]
    for node in nodes:
        await node.close(1)


async def test_activations_that_are_held_keep_their_bytes() -> None:
    """A buffer that was not released is not received into, and every pass that may be under way has one."""
    async with ring_of(2) as stages:
        stages[1].holds = True
        for number in range(in_flight(2)):
            stages[0].node.send(prefill(number), activation(number))
        await until(lambda: len(stages[1].held) == in_flight(2), "a buffer for each pass that may be under way")
        stages[0].node.send(prefill(99), activation(99))
        await asyncio.sleep(0.1)
        assert len(stages[1].held) == in_flight(2)
        for number, held in enumerate(stages[1].held):
            np.testing.assert_array_equal(held.array, activation(number))
        stages[1].held[0].release()
        stages[1].held[0].release()
        await until(lambda: len(stages[1].held) == in_flight(2) + 1, "the pass that waited for a buffer")
        np.testing.assert_array_equal(stages[1].held[-1].array, activation(99))


async def test_a_damaged_activation_ends_the_group_and_is_not_handed_over() -> None:
    plan = FaultPlan([Fault(FaultKind.CORRUPT, Way.DATA, first=1, offset=5)])
    async with ring_of(3, **faults(2, plan)) as stages:  # type: ignore[arg-type]
        for number in range(3):
            stages[0].node.send(prefill(number), activation(number))
        (text,) = await lost_everywhere(stages)
        assert "PrefillPass from stage 1" in text and "arrived damaged" in text
        assert [message for message, _ in stages[2].heard] == [prefill(0)]


async def test_an_activation_that_never_comes_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data way may die while PINGs still come."""
    monkeypatch.setattr(link, "INTERVAL_SECONDS", TICK)
    plan = FaultPlan([Fault(FaultKind.DROP, Way.DATA, first=0)])
    async with ring_of(2, **faults(0, plan)) as stages:  # type: ignore[arg-type]
        stages[0].node.send(prefill(0), activation(0))
        (text,) = await lost_everywhere(stages)
        assert f"an activation from stage 0 (stage-0, memory-1) did not arrive within {inbound.STALL_TICKS} s" in text


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("kind", [FaultKind.RESET, FaultKind.STALL])
async def test_a_cut_or_silent_link_ends_the_group(
    stage: int, kind: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "INTERVAL_SECONDS", TICK)
    plan = FaultPlan([Fault(kind, Way.CONTROL, first=60, seconds=math.inf)])
    async with ring_of(3, **faults(stage, plan)) as stages:  # type: ignore[arg-type]
        texts = await lost_everywhere(stages)
        assert plan.injected[Way.CONTROL, kind]
        assert all(f"stage {stage}" in text or "injected reset" in text for text in texts), texts


@pytest.mark.parametrize("stage", [0, 1, 2])
async def test_a_stage_that_leaves_is_named_to_all_others(stage: int) -> None:
    async with ring_of(3) as stages:
        await stages[stage].node.close(5)
        assert await lost_everywhere(stages, but=stage) == {f"stage {stage} (stage-{stage}) shuts down"}
        assert not stages[stage].lost, "who leaves knows it"


async def test_what_was_sent_before_leaving_still_arrives() -> None:
    async with ring_of(2) as stages:
        for number in range(100):
            stages[1].node.send(Result(number, []), None)
        await stages[1].node.close(5)
        await until(lambda: stages[0].lost, "the end")
        assert stages[0].numbers() == list(range(100))


async def test_leaving_amid_activations_is_bounded_and_frees_their_buffers() -> None:
    async with ring_of(2) as stages:
        stages[1].holds = True
        for number in range(in_flight(2) + 2):
            stages[0].node.send(prefill(number), activation(number))
        async with asyncio.timeout(stage_nodes.SECONDS):
            await stages[0].node.close(2)
        buffers = stages[0].node._buffers
        assert buffers.free == buffers.count
        stages[0].node.send(prefill(99), activation(99))
        assert buffers.free == buffers.count, "sending after the end does nothing"


async def test_more_passes_than_may_be_under_way_end_the_group() -> None:
    async with ring_of(2) as stages:
        stages[1].holds = True
        for number in range(4 * in_flight(2)):
            stages[0].node.send(prefill(number), activation(number))
        texts = await lost_everywhere(stages)
        assert any("stage 1 does not take what is sent to it" in text for text in texts)


async def test_a_defect_of_an_engine_ends_the_group_and_says_where() -> None:
    async with ring_of(3) as stages:

        def broken(message: object, given: object) -> None:
            raise RuntimeError("out of order")

        stages[1].node.start(broken, stages[1].lost.append)
        stages[0].node.send(Release(1), None)
        assert await lost_everywhere(stages) == {"stage 1 could not take Release: out of order"}


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"no message", "checksum does not fit"),
        (encode(Carry(Release(1), None)), "came back to the first stage"),
        (encode(Carry(Ready(1, 1, 1), Description([1 << 20], "float32", 0))), "agreed on at most"),
        (encode(Ended("stage 9 says so")), "stage 9 says so"),
    ],
)
async def test_what_no_stage_sends_ends_the_group(payload: bytes, said: str) -> None:
    async with ring_of(2) as stages:
        outgoing = stages[1].node.links.outgoing
        assert outgoing is not None
        outgoing.connection.send_control(payload)
        (text,) = await lost_everywhere(stages)
        assert said in text


async def test_a_message_against_the_direction_ends_the_group() -> None:
    async with ring_of(3) as stages:
        outgoing = stages[0].node.links.outgoing
        assert outgoing is not None
        stages[1].node.links._incoming.connection.send_control(encode(Carry(Release(1), None)))  # type: ignore[union-attr]
        (text,) = await lost_everywhere(stages)
        assert "came against the direction of the ring" in text and "stage 1" in text
