"""What two sidecars and their agents do when nothing goes wrong."""

from __future__ import annotations

import asyncio

import pytest

from kvferry_contract.config import OverlapMode, Role
from kvferry_runtime.ring.messages import Fill, Loaded, Sent
from scripted_agent import TOKEN_BYTES, Prompt
from sidecar_pods import World, same, transfer_id, until


@pytest.mark.parametrize("tokens", [1, 127, 128, 129, 1000])
async def test_every_byte_arrives_and_all_slots_come_back(pods: World, tokens: int) -> None:
    prefill, decode = await pods.pair()
    prompt = Prompt(tokens, range(4))
    prefill.agent.send(transfer_id(1), prompt)
    decode.agent.fetch(transfer_id(1), [prefill.peer], tokens)
    loaded, sent = await decode.agent.end(transfer_id(1)), await prefill.agent.end(transfer_id(1))
    assert isinstance(loaded, Loaded) and loaded.first_token == 7
    assert loaded.raw_bytes == loaded.wire_bytes == tokens * 4 * TOKEN_BYTES
    assert isinstance(sent, Sent) and sent.committed
    assert same(decode.agent, transfer_id(1), prompt)
    await until(lambda: prefill.slots() == {"slots": 16, "free": 16})
    assert decode.slots() == {"slots": 16, "free": 8, "posted": 8}


@pytest.mark.parametrize("reserve_first", [True, False])
async def test_offer_and_reserve_may_come_in_any_order(pods: World, reserve_first: bool) -> None:
    prefill, decode = await pods.pair()
    prompt = Prompt(300, range(4))
    first, second = (
        lambda: decode.agent.fetch(transfer_id(1), [prefill.peer], 300),
        lambda: prefill.agent.send(transfer_id(1), prompt),
    )
    for step in (first, second) if reserve_first else (second, first):
        step()
        await asyncio.sleep(0.05)
    assert isinstance(await decode.agent.end(transfer_id(1)), Loaded)
    assert same(decode.agent, transfer_id(1), prompt)


async def test_both_records_tell_the_same_story(pods: World) -> None:
    prefill, decode = await pods.pair()
    prefill.agent.send(transfer_id(1), Prompt(500, range(4)))
    decode.agent.fetch(transfer_id(1), [prefill.peer], 500)
    await decode.agent.end(transfer_id(1))
    await prefill.agent.end(transfer_id(1))
    sent, received = prefill.record(transfer_id(1)), decode.record(transfer_id(1))
    for key in ("chunks", "bytes_raw", "bytes_wire", "digest", "tokens", "codec", "layerwise", "lanes", "state"):
        assert sent[key] == received[key], key
    assert sent["state"] == "committed" and sent["bytes_raw"] == 500 * 4 * TOKEN_BYTES
    assert sent["lanes"] == ["memory:process"]
    assert int(sent["digest"], 16) != 0


async def test_many_transfers_share_one_session(pods: World) -> None:
    prefill, decode = await pods.pair()
    prompts = {transfer_id(number): Prompt(200 + number, range(4), seed=number) for number in range(1, 21)}
    for name, prompt in prompts.items():
        prefill.agent.send(name, prompt)
        decode.agent.fetch(name, [prefill.peer], prompt.tokens)
    for name, prompt in prompts.items():
        assert isinstance(await decode.agent.end(name), Loaded)
        assert same(decode.agent, name, prompt)
        assert isinstance(end := await prefill.agent.end(name), Sent) and end.committed
    assert len(prefill.core.state()["sessions"]) == len(decode.core.state()["sessions"]) == 1
    await until(lambda: prefill.slots() == {"slots": 16, "free": 16})
    assert prefill.metric("transfers_committed_total", direction="send") == 20
    assert decode.metric("transfers_committed_total", direction="receive") == 20


async def test_stages_are_joined_by_global_layer_number(pods: World) -> None:
    """Case 36."""
    first = await pods.pod(Role.PREFILL, range(2))
    second = await pods.pod(Role.PREFILL, range(2, 4))
    decode = await pods.pod(Role.DECODE, range(4))
    low, high = Prompt(300, range(2), seed=1), Prompt(300, range(2, 4), seed=2)
    decode.agent.fetch(transfer_id(1), [first.peer, second.peer], 300)
    first.agent.send(transfer_id(1), low)
    assert isinstance(end := await _not_yet(decode.agent.end(transfer_id(1))), type(None)), end
    second.agent.send(transfer_id(1), high)
    assert isinstance(await decode.agent.end(transfer_id(1)), Loaded)
    assert same(decode.agent, transfer_id(1), low, high)
    for stage in (first, second):
        assert isinstance(end := await stage.agent.end(transfer_id(1)), Sent) and end.committed


async def _not_yet(awaitable: object) -> object:
    try:
        return await asyncio.wait_for(awaitable, 0.2)  # type: ignore[arg-type]
    except TimeoutError:
        return None


async def test_layerwise_on_one_side_only_becomes_whole_request(pods: World) -> None:
    """Case 34."""
    prefill = await pods.pod(Role.PREFILL, overlap=OverlapMode.LAYERWISE)
    decode = await pods.pod(Role.DECODE, overlap=OverlapMode.REQUEST)
    prompt = Prompt(300, range(4))
    prefill.agent.offer(transfer_id(1), prompt, layerwise=True)
    decode.agent.fetch(transfer_id(1), [prefill.peer], 300)
    prefill.agent.announce(transfer_id(1))
    await until(lambda: prefill.record(transfer_id(1))["state"] == "open")
    await asyncio.sleep(0.1)
    assert not any(isinstance(message, Fill) for message in prefill.agent.told)
    prefill.agent.seal(transfer_id(1))
    assert isinstance(await decode.agent.end(transfer_id(1)), Loaded)
    assert same(decode.agent, transfer_id(1), prompt)
    assert prefill.record(transfer_id(1))["layerwise"] is decode.record(transfer_id(1))["layerwise"] is False


async def test_layerwise_chunks_leave_before_the_pass_is_over(pods: World) -> None:
    prefill, decode = await pods.pair()
    prompt = Prompt(300, range(4))
    prefill.agent.offer(transfer_id(1), prompt)
    decode.agent.fetch(transfer_id(1), [prefill.peer], 300)
    prefill.agent.announce(transfer_id(1), 0, 3)
    await until(lambda: decode.record(transfer_id(1))["chunks"] == 3)
    prefill.agent.announce(transfer_id(1), 3)
    prefill.agent.seal(transfer_id(1))
    assert isinstance(await decode.agent.end(transfer_id(1)), Loaded)
    assert same(decode.agent, transfer_id(1), prompt)


async def test_the_key_of_a_transfer_is_its_id_alone(pods: World) -> None:
    """Case 41: two requests that a client gave the same id have two transfer ids, and each gets its own bytes."""
    prefill, decode = await pods.pair()
    prompts = [Prompt(200, range(4), seed=number) for number in (1, 2)]
    for number, prompt in enumerate(prompts):
        decode.agent.fetch(transfer_id(number), [prefill.peer], 200)
        prefill.agent.send(transfer_id(number), prompt)
    for number, prompt in enumerate(prompts):
        assert isinstance(await decode.agent.end(transfer_id(number)), Loaded)
        assert same(decode.agent, transfer_id(number), prompt)
