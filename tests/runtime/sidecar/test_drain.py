"""SIGTERM, at the core: nothing new is taken, open transfers end, then everything is freed."""

from __future__ import annotations

import asyncio

from kvferry_runtime.ring.messages import Loaded, LoadFailed, Sent
from scripted_agent import Prompt
from sidecar_pods import World, same, transfer_id, until


async def test_open_transfers_end_and_new_ones_are_refused(pods: World) -> None:
    """Case 22."""
    prefill, decode = await pods.pair()
    prompts = {transfer_id(number): Prompt(1000, range(4), seed=number) for number in range(1, 9)}
    for name, prompt in prompts.items():
        prefill.agent.offer(name, prompt)
        prefill.agent.announce(name, 0, 3)
        decode.agent.fetch(name, [prefill.peer], 1000)
    await until(lambda: all(decode.record(name)["chunks"] == 3 for name in prompts))
    prefill.agent.offer(transfer_id(20), Prompt(10, range(4)))
    await asyncio.sleep(0.05)
    draining = asyncio.create_task(prefill.core.drain())
    await until(lambda: prefill.core.draining)
    assert not prefill.core.ready
    assert isinstance(end := await prefill.agent.end(transfer_id(20)), Sent) and end.reason == "draining"
    await until(lambda: any(session.draining for session in decode.core._sessions()))
    decode.agent.fetch(transfer_id(21), [prefill.peer], 10)
    assert isinstance(late := await decode.agent.end(transfer_id(21)), LoadFailed) and late.reason == "draining"
    for name in prompts:
        prefill.agent.announce(name, 3)
        prefill.agent.seal(name)
    for name, prompt in prompts.items():
        assert isinstance(await decode.agent.end(name), Loaded)
        assert same(decode.agent, name, prompt)
    await draining
    await prefill.core.close()
    await until(lambda: decode.slots() == {"slots": 16, "free": 16})


async def test_a_drain_ends_what_outlasts_it(pods: World) -> None:
    prefill, decode = await pods.pair(drain=0.2)
    name = transfer_id(1)
    prefill.agent.offer(name, Prompt(1000, range(4)))
    prefill.agent.announce(name, 0, 3)
    decode.agent.fetch(name, [prefill.peer], 1000)
    await until(lambda: decode.record(name)["chunks"] == 3)
    await prefill.core.drain()
    assert isinstance(end := await decode.agent.end(name), LoadFailed) and end.reason == "draining"
    assert isinstance(sent := await prefill.agent.end(name), Sent) and sent.reason == "draining"
    assert decode.core.ready


async def test_decode_drains_too(pods: World) -> None:
    prefill, decode = await pods.pair(drain=0.2)
    name = transfer_id(1)
    prefill.agent.offer(name, Prompt(1000, range(4)))
    decode.agent.fetch(name, [prefill.peer], 1000)
    await until(lambda: prefill.record(name)["state"] == "open")
    await decode.core.drain()
    assert isinstance(sent := await prefill.agent.end(name), Sent) and sent.reason == "draining"
    decode.agent.fetch(transfer_id(2), [prefill.peer], 10)
    assert isinstance(end := await decode.agent.end(transfer_id(2)), LoadFailed) and end.reason == "draining"
