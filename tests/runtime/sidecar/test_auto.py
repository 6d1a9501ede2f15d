"""A transfer whose method, and whether it goes layer by layer, is chosen by what the link was measured to carry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvferry_contract.config import OverlapMode, Role
from kvferry_runtime.auto.goodput import Goodput
from kvferry_runtime.ring.messages import (
    Check,
    Chosen,
    Cut,
    Fill,
    Loaded,
    LoadFailed,
    ManifestLayer,
    OfferedMethod,
    Sent,
)
from kvferry_runtime.wire.messages import Reserve
from scripted_agent import TOKEN_BYTES, Chunk, Prompt
from sidecar_pods import Pod, World, same, transfer_id, until

TOKENS = 600
MEASURED = [
    OfferedMethod("none", 1.0, 6e9, 6e9),
    OfferedMethod("lossless", 0.75, 5e9, 5e9),
    OfferedMethod("int8", 0.53, 5e9, 5e9),
]


async def transfer(prefill: Pod, decode: Pod, number: int = 1, **offer: Any) -> Chosen:
    """One prompt, announced when the sidecar has said how to cut it; what it said."""
    name, prompt = transfer_id(number), Prompt(TOKENS, range(4), seed=number)
    prefill.agent.offer(name, prompt, **({"codec": "auto", "layerwise": None, "methods": MEASURED} | offer))
    decode.agent.fetch(name, [prefill.peer], TOKENS)
    await until(lambda: bool(chosen(prefill, name)))
    prefill.agent.announce(name)
    prefill.agent.seal(name)
    assert isinstance(await decode.agent.end(name), Loaded)
    assert isinstance(end := await prefill.agent.end(name), Sent) and end.committed
    assert same(decode.agent, name, prompt)
    return chosen(prefill, name)[0]


def chosen(pod: Pod, name: str) -> list[Chosen]:
    return [message for message in pod.agent.told if isinstance(message, Chosen) and message.transfer_id == name]


def used(pod: Pod, number: int = 1) -> set[str]:
    name = transfer_id(number)
    return {message.codec for message in pod.agent.told if isinstance(message, Fill) and message.transfer_id == name}


class Known(Goodput):
    """A link of which everything is known, whatever this machine is doing meanwhile."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._rate = rate

    def bytes_per_second(self, now: float) -> float:
        return self._rate


async def link_is(pod: Pod, bytes_per_second: float) -> None:
    await until(lambda: bool(pod.core.state()["sessions"]))
    for session in pod.core._sends.sessions:
        session.goodput = Known(bytes_per_second)


async def pair(pods: World, **options: Any) -> tuple[Pod, Pod]:
    known = {"codecs": ["none", "lossless", "int8"]}
    return await pods.pair(**({"attach": known, "overlap": OverlapMode.AUTO} | options))


async def test_the_first_transfer_to_a_peer_goes_exact(pods: World) -> None:
    prefill, decode = await pair(pods)
    assert (await transfer(prefill, decode)).layerwise
    record = prefill.record(transfer_id(1))
    assert (record["why"], record["exposed_seconds"]) == ("unmeasured", None)
    assert sum(record["codecs"].values()) == record["bytes_raw"]
    assert prefill.metric("method_chosen_total", method="none", why="unmeasured") == 1


async def test_a_slow_link_gets_the_least_lossy_method_that_is_not_slowed_down(pods: World) -> None:
    prefill, decode = await pair(pods)
    await transfer(prefill, decode)
    await link_is(prefill, 1e4)
    await transfer(prefill, decode, 2)
    record = prefill.record(transfer_id(2))
    assert record["why"] == "link_slow" and record["exposed_seconds"] > 1
    assert used(prefill, 2) == {"int8"} and record["codec"] == "int8"
    assert prefill.metric("method_chosen_total", method="int8", why="link_slow") == 1


async def test_the_method_follows_the_link_within_a_request(pods: World) -> None:
    """The link is found to be fast while a request for a slow one is under way: later chunks go exact."""
    prefill, decode = await pair(pods, overlap=OverlapMode.LAYERWISE)
    await transfer(prefill, decode, layerwise=True)
    await link_is(prefill, 1e4)
    name, prompt = transfer_id(2), Prompt(TOKENS, range(4), seed=2)
    prefill.agent.offer(name, prompt, codec="auto", methods=MEASURED)
    decode.agent.fetch(name, [prefill.peer], TOKENS)
    prefill.agent.announce(name, 0, 4)
    await until(lambda: used(prefill, 2) == {"int8"})
    await until(lambda: decode.record(name)["chunks"] == 4)
    await link_is(prefill, 1e12)
    prefill.agent.announce(name, 4)
    prefill.agent.seal(name)
    assert isinstance(await decode.agent.end(name), Loaded)
    assert used(prefill, 2) == {"int8", "none"}
    record = prefill.record(name)
    assert set(record["codecs"]) == {"int8", "none"} and sum(record["codecs"].values()) == record["bytes_raw"]
    assert record["codec"] == max(record["codecs"], key=record["codecs"].__getitem__)


async def test_only_what_decode_can_decode(pods: World) -> None:
    prefill = await pods.pod(Role.PREFILL, attach={"codecs": ["none", "lossless", "int8"]}, overlap=OverlapMode.AUTO)
    decode = await pods.pod(Role.DECODE, attach={"codecs": ["none", "lossless"]}, overlap=OverlapMode.AUTO)
    await transfer(prefill, decode)
    await link_is(prefill, 1e4)
    await transfer(prefill, decode, 2)
    assert used(prefill, 2) == {"lossless"}


async def bound_to_the_first(pods: World) -> tuple[Pod, Pod, Pod]:
    """Transfer 3 goes to a decode that cannot take fp4, though a slow link calls for it; another decode could."""
    prefill = await pods.pod(Role.PREFILL, attach={"codecs": ["none", "int8", "fp4"]}, overlap=OverlapMode.AUTO)
    first = await pods.pod(Role.DECODE, attach={"codecs": ["none", "int8"]}, overlap=OverlapMode.AUTO)
    second = await pods.pod(Role.DECODE, attach={"codecs": ["none", "int8", "fp4"]}, overlap=OverlapMode.AUTO)
    for number, decode in enumerate((first, second), 1):
        await transfer(prefill, decode, number)
    await link_is(prefill, 1e3)
    name = transfer_id(3)
    prefill.agent.holding = True
    methods = [MEASURED[0], MEASURED[2], OfferedMethod("fp4", 0.3, 5e9, 5e9)]
    prefill.agent.offer(name, Prompt(TOKENS, range(4), seed=3), codec="auto", layerwise=None, methods=methods)
    first.agent.fetch(name, [prefill.peer], TOKENS)
    await until(lambda: bool(chosen(prefill, name)))
    prefill.agent.announce(name)
    prefill.agent.seal(name)
    await until(lambda: prefill.agent.held > 0)
    return prefill, first, second


async def test_a_decode_that_is_denied_changes_nothing_for_the_transfer(pods: World) -> None:
    """It names a transfer of another one: chunks go on as that one can take them."""
    prefill, first, second = await bound_to_the_first(pods)
    name = transfer_id(3)
    second.agent.fetch(name, [prefill.peer], TOKENS)
    assert isinstance(denied := await second.agent.end(name), LoadFailed) and denied.reason == "denied"
    prefill.agent.holding = False
    prefill.agent.release()
    assert isinstance(await first.agent.end(name), Loaded)
    assert same(first.agent, name, Prompt(TOKENS, range(4), seed=3))
    assert used(prefill, 3) == {"int8"} and len(chosen(prefill, name)) == 1


async def test_a_reserve_that_comes_again_is_denied_and_changes_nothing(pods: World) -> None:
    """Of the session to which the transfer is bound, in the same generation, and with other wishes."""
    prefill, _, _ = await bound_to_the_first(pods)
    sends = prefill.core._sends
    [sending] = [send for send in sends._sends.values() if send.record.id == transfer_id(3)]
    [session] = [session for session in sends.sessions if session.name == sending.machine.peer]
    course = sending.course
    sends._reserve(session, Reserve(transfer_id(3), 0, 0, 4, 0, TOKENS, ["none", "int8", "fp4"], 1000, resume_tokens=7))
    assert sending.course is course and sending.resume_tokens == 0
    assert prefill.metric("method_chosen_total", method="int8", why="link_slow") == 1
    assert prefill.metric("method_chosen_total", method="fp4", why="link_slow") == 0


async def test_a_peer_cannot_ask_for_more_bands_than_a_transfer_may_have(pods: World) -> None:
    prefill, decode = await pair(pods, overlap=OverlapMode.LAYERWISE)
    name = transfer_id(1)
    prefill.agent.offer(name, Prompt(TOKENS, range(4)), codec="auto", methods=MEASURED)
    decode.agent.fetch(name, [prefill.peer], TOKENS, resume=1)
    await until(lambda: bool(chosen(prefill, name)))
    assert chosen(prefill, name)[0].band_tokens == 10


async def test_a_decode_that_cannot_even_take_exact_values_is_denied(pods: World) -> None:
    prefill = await pods.pod(Role.PREFILL, attach={"codecs": ["none", "int8"]})
    decode = await pods.pod(Role.DECODE, attach={"codecs": ["int8"]})
    prefill.agent.offer(transfer_id(1), Prompt(TOKENS, range(4)), codec="auto", methods=MEASURED)
    decode.agent.fetch(transfer_id(1), [prefill.peer], TOKENS)
    end = await decode.agent.end(transfer_id(1))
    assert isinstance(end, LoadFailed) and end.reason == "denied" and "none" in end.message


@pytest.mark.parametrize("side", [Role.PREFILL, Role.DECODE])
async def test_layer_by_layer_is_not_chosen_where_one_side_cannot(pods: World, side: Role) -> None:
    """Case 34, with a mode that is chosen: the side in the middle of a rollout decides."""
    modes = {role: OverlapMode.REQUEST if role is side else OverlapMode.AUTO for role in (Role.PREFILL, Role.DECODE)}
    prefill, decode = [await pods.pod(role, overlap=modes[role]) for role in modes]
    said = await transfer(prefill, decode, codec="none", methods=MEASURED[:1])
    assert said.layerwise is prefill.record(transfer_id(1))["layerwise"] is False
    assert decode.record(transfer_id(1))["layerwise"] is False


async def test_a_short_pass_goes_as_a_whole_once_the_link_is_known(pods: World) -> None:
    """600 tokens would go layer by layer by the rule for links that were never measured."""
    prefill, decode = await pair(pods)
    await transfer(prefill, decode)
    await link_is(prefill, 1e9)
    assert not (await transfer(prefill, decode, 2, compute_us=1000)).layerwise


async def test_a_fixed_method_is_named_as_such(pods: World) -> None:
    prefill, decode = await pair(pods)
    await transfer(prefill, decode, codec="int8", methods=MEASURED[2:])
    assert prefill.record(transfer_id(1))["why"] == "fixed"
    assert used(prefill) == {"int8"}
    assert prefill.metric("method_chosen_total", method="int8", why="fixed") == 1


async def test_what_checks_found_is_exported(pods: World) -> None:
    prefill, decode = await pair(pods)
    assert prefill.core.state()["totals"]["max_relative_error"] is None
    found = iter([Check("int8", 0.25, True), Check("int8", 0.125, False)])
    prefill.agent.check = lambda header: next(found, None)
    await transfer(prefill, decode, codec="int8", methods=MEASURED[2:])
    assert prefill.core.state()["totals"]["max_relative_error"] == 0.25
    assert prefill.record(transfer_id(1))["max_relative_error"] == 0.25
    assert prefill.metric("max_relative_error") == 0.25
    assert prefill.metric("method_checks_total", method="int8") == 2
    assert prefill.metric("method_switched_off_total", method="int8") == 1


def bands(prompt: Prompt, size: int) -> list[Chunk]:
    """All layers of the first `size` tokens, then of the next ones."""
    places = [(layer, start) for start in range(0, prompt.tokens, size) for layer in prompt.layers]
    return [Chunk(number, layer, start, start + size) for number, (layer, start) in enumerate(places)]


async def collapsing(prefill: Pod, decode: Pod, resume: int, size: int = 100) -> str:
    """A prompt of 600 tokens of which one band was sent when the link collapsed; its name."""
    await transfer(prefill, decode)
    name, prompt = transfer_id(2), Prompt(TOKENS, range(4), seed=2)
    chunks = bands(prompt, size)
    prefill.agent.offer(name, prompt, codec="auto", methods=MEASURED[:1], compute_us=1000, chunks=chunks)
    decode.agent.holding = True
    decode.agent.fetch(name, [prefill.peer], TOKENS, resume=resume)
    await until(lambda: bool(chosen(prefill, name)))
    for band in range(0, len(chunks), 4):
        tokens = (band // 4 + 1) * size
        manifest = [ManifestLayer(layer, tokens, band // 4 + 1) for layer in range(4)]
        prefill.agent.announce(name, band, band + 4, Cut(tokens, band + 4, manifest) if tokens < TOKENS else None)
    await link_is(prefill, 10.0)
    prefill.agent.seal(name)
    return name


async def test_on_a_collapsing_link_decode_computes_the_rest(pods: World) -> None:
    """P ends where decode's engine can go on, both sides commit that, and the engine is told how much is in place."""
    prefill, decode = await pair(pods, overlap=OverlapMode.LAYERWISE, slots=16, inflight_chunks=2)
    name = await collapsing(prefill, decode, resume=100)
    await until(lambda: prefill.record(name)["shortened_to"] is not None)
    decode.agent.holding = False
    decode.agent.release()
    loaded = await decode.agent.end(name)
    assert isinstance(loaded, Loaded) and loaded.tokens is not None
    assert loaded.tokens == prefill.record(name)["shortened_to"] == decode.record(name)["shortened_to"]
    assert 0 < loaded.tokens < TOKENS and loaded.tokens % 100 == 0
    assert isinstance(end := await prefill.agent.end(name), Sent) and end.committed
    prompt = Prompt(TOKENS, range(4), seed=2)
    for layer, data in decode.agent.loaded[name].items():
        assert bytes(data[: loaded.tokens * TOKEN_BYTES]) == prompt.kv[layer][: loaded.tokens * TOKEN_BYTES]
        assert not any(data[loaded.tokens * TOKEN_BYTES :])
    assert prefill.metric("transfers_shortened_total") == 1
    await until(lambda: prefill.slots() == {"slots": 16, "free": 16})


async def test_an_engine_that_cannot_go_on_gets_everything(pods: World) -> None:
    prefill, decode = await pair(pods, overlap=OverlapMode.LAYERWISE, slots=16, inflight_chunks=2)
    name = await collapsing(prefill, decode, resume=0)
    assert chosen(prefill, name)[0].band_tokens == 0
    await asyncio.sleep(0.2)
    decode.agent.holding = False
    decode.agent.release()
    loaded = await decode.agent.end(name)
    assert isinstance(loaded, Loaded) and loaded.tokens is None
    assert same(decode.agent, name, Prompt(TOKENS, range(4), seed=2))
