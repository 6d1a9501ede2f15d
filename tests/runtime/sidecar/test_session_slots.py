"""Slots for the sessions of a decode that loads from many stages at once: each gets some, or the load fails in time."""

from __future__ import annotations

import asyncio

import pytest

from kvferry_contract.config import Role
from kvferry_runtime.errors import Reason
from kvferry_runtime.ring.messages import Loaded, LoadFailed
from scripted_agent import Prompt
from sidecar_pods import Pod, World, same, transfer_id, until

STAGES = 7
TOKENS = 400


async def stages(pods: World, slots: int) -> tuple[list[Pod], Pod]:
    """One layer in each pod of prefill; decode has them all, and a ring of so many slots."""
    prefill = [await pods.pod(Role.PREFILL, range(n, n + 1), STAGES) for n in range(STAGES)]
    return prefill, await pods.pod(Role.DECODE, range(STAGES), STAGES, slots=slots)


@pytest.mark.parametrize("slots", [STAGES, STAGES + 1, 16, 64])
async def test_every_stage_of_a_transfer_gets_slots(pods: World, slots: int) -> None:
    prefill, decode = await stages(pods, slots)
    for number in (1, 2):
        prompts = [Prompt(TOKENS, range(n, n + 1), seed=number) for n in range(STAGES)]
        for pod, prompt in zip(prefill, prompts, strict=True):
            pod.agent.send(transfer_id(number), prompt)
        decode.agent.fetch(transfer_id(number), [pod.peer for pod in prefill], TOKENS)
        assert isinstance(await decode.agent.end(transfer_id(number)), Loaded)
        assert same(decode.agent, transfer_id(number), *prompts)
    assert all(session["credits"] for session in decode.core.state()["sessions"])


async def test_a_ring_that_is_too_small_for_all_stages_is_named_at_once(pods: World) -> None:
    prefill, decode = await stages(pods, STAGES - 1)
    decode.agent.fetch(transfer_id(1), [pod.peer for pod in prefill], TOKENS, seconds=60.0)
    failed = await decode.agent.end(transfer_id(1))
    assert isinstance(failed, LoadFailed) and failed.reason == Reason.NO_CAPACITY.value
    assert "7 peers need a slot each, the ring has 6: raise transfer.bufferBytes" in failed.message


async def test_slots_of_sessions_that_are_done_go_to_those_that_wait(pods: World) -> None:
    """Two groups of prefill, of which the ring can serve one at a time; one load is less patient than the next."""
    prefill = [await pods.pod(Role.PREFILL, range(n % 2, n % 2 + 1), 2) for n in range(4)]
    decode = await pods.pod(Role.DECODE, range(2), 2, slots=2)
    first, second = prefill[:2], prefill[2:]
    prompts = [Prompt(TOKENS, range(n, n + 1)) for n in range(2)]
    decode.agent.fetch(transfer_id(1), [pod.peer for pod in first], TOKENS)
    await until(lambda: len(decode.core.state()["sessions"]) == 2)
    decode.agent.fetch(transfer_id(2), [pod.peer for pod in second], TOKENS, seconds=0.3)
    await asyncio.sleep(0.1)
    decode.agent.fetch(transfer_id(3), [pod.peer for pod in second], TOKENS)
    failed = await decode.agent.end(transfer_id(2))
    assert isinstance(failed, LoadFailed)
    assert failed.reason in (Reason.NO_CAPACITY.value, Reason.DEADLINE.value)
    for number, group in ((1, first), (3, second)):
        for pod, prompt in zip(group, prompts, strict=True):
            pod.agent.send(transfer_id(number), prompt)
        assert isinstance(await decode.agent.end(transfer_id(number)), Loaded)
        assert same(decode.agent, transfer_id(number), *prompts)
    await until(lambda: set(decode.slots()) <= {"slots", "free", "posted"})
