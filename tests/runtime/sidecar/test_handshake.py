"""Who may talk to whom, and what those hear who may not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvferry_contract.config import OnFallback, Role, TransportKind
from kvferry_runtime.errors import Reason
from kvferry_runtime.ring.messages import Loaded, LoadFailed, Refused
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.wire.frames import MAX_CONTROL_BYTES
from kvferry_runtime.wire.handshake import Refusal
from kvferry_runtime.wire.messages import Reject, Reserve, decode, encode
from scripted_agent import Prompt
from sidecar_pods import Pod, World, same, transfer_id, until


async def fetched(prefill: Pod, decode: Pod, number: int = 1) -> Any:
    name = transfer_id(number)
    if prefill.core.attached:
        prefill.agent.send(name, Prompt(100, range(4)))
    decode.agent.fetch(name, [prefill.peer], 100)
    return await decode.agent.end(name)


@pytest.mark.parametrize(
    ("ours", "theirs", "named"),
    [
        ({"fingerprint": {"kv.dtype": "bf16"}}, {"fingerprint": {"kv.dtype": "fp8"}}, ("kv.dtype", "bf16", "fp8")),
        ({"fingerprint": {"a": "1", "model": "m"}}, {"fingerprint": {"a": "1"}}, ("model", "'m'", "''")),
        ({"codecs": ["none"]}, {"codecs": ["int8"]}, ("codecs", "none", "int8")),
    ],
)
async def test_a_mismatch_is_refused_by_name(
    pods: World, ours: dict[str, Any], theirs: dict[str, Any], named: tuple[str, ...]
) -> None:
    """Case 42: and nothing is written into decode's memory."""
    prefill = await pods.pod(Role.PREFILL, attach=ours)
    decode = await pods.pod(Role.DECODE, attach=theirs)
    end = await fetched(prefill, decode)
    assert isinstance(end, LoadFailed) and end.reason == "fingerprint_mismatch"
    assert all(text in end.message for text in named), end.message
    assert not any(any(data) for data in decode.agent.loaded[transfer_id(1)].values())
    assert prefill.metric("rejected_connections_total", reason="fingerprint") == 1
    assert decode.metric("transfers_failed_total", direction="receive", reason="fingerprint_mismatch") == 1
    assert decode.slots() == {"slots": 16, "free": 16}


async def test_chunks_that_do_not_fit_are_refused(pods: World) -> None:
    prefill = await pods.pod(Role.PREFILL, chunk_bytes=8192)
    decode = await pods.pod(Role.DECODE, chunk_bytes=4096)
    end = await fetched(prefill, decode)
    assert isinstance(end, LoadFailed) and "chunk_bytes" in end.message and "8192" in end.message


async def test_another_key_is_refused_and_the_next_attempt_starts_clean(pods: World) -> None:
    prefill = await pods.pod(Role.PREFILL)
    stranger = await pods.pod(Role.DECODE, key=b"x" * 32)
    decode = await pods.pod(Role.DECODE)
    end = await fetched(prefill, stranger)
    assert isinstance(end, LoadFailed) and end.reason == "handshake_failed" and "key" in end.message
    assert stranger.metric("transfers_failed_total", direction="receive", reason="handshake_failed") == 1
    assert isinstance(await fetched(prefill, decode, 2), Loaded)


async def test_no_engine_yet(pods: World) -> None:
    prefill = await pods.pod(Role.PREFILL, attached=False)
    decode = await pods.pod(Role.DECODE)
    end = await fetched(prefill, decode)
    assert isinstance(end, LoadFailed) and end.reason == "no_connector"
    await prefill.agent.attach()
    assert isinstance(await fetched(prefill, decode, 2), Loaded)


@pytest.mark.parametrize("policy", [OnFallback.FAIL, OnFallback.WARN])
async def test_rdma_without_an_rdma_lane(pods: World, policy: OnFallback) -> None:
    prefill, decode = await pods.pair(transport_kind=TransportKind.RDMA, on_fallback=policy)
    end = await fetched(prefill, decode)
    if policy is OnFallback.FAIL:
        assert isinstance(end, LoadFailed) and end.reason == "fell_back" and "memory:process" in end.message
        await until(lambda: not prefill.core.state()["sessions"] and not decode.core.state()["sessions"])
    else:
        assert isinstance(end, Loaded)
        assert prefill.metric("transport_fallbacks_total") == decode.metric("transport_fallbacks_total") == 1


async def test_a_restarted_pod_replaces_its_old_session(pods: World) -> None:
    """Case 23, at the core: same name and port, another process."""
    prefill, decode = await pods.pair()
    assert isinstance(await fetched(prefill, decode), Loaded)
    _host, port = prefill.core.address
    await prefill.core.close()
    again = await pods.pod(Role.PREFILL, name=prefill.core.settings.group, port=port)
    await until(lambda: not decode.core.state()["sessions"])
    assert isinstance(await fetched(again, decode, 2), Loaded)
    twin = await pods.pod(Role.DECODE, name=decode.core.settings.group)
    assert isinstance(await fetched(again, twin, 3), Loaded)
    await until(lambda: len(again.core.state()["sessions"]) == 1)


async def test_reconnecting_at_once_loses_nothing(pods: World) -> None:
    """Case 26."""
    prefill, decode = await pods.pair()
    for number in range(1, 41):
        prompt = Prompt(300, range(4), seed=number)
        prefill.agent.send(transfer_id(number), prompt)
        decode.agent.fetch(transfer_id(number), [prefill.peer], 300)
        assert isinstance(await decode.agent.end(transfer_id(number)), Loaded)
        assert same(decode.agent, transfer_id(number), prompt)
        for session in decode.core._sessions():
            session.leave(Reason.CANCELLED, "reconnect")
    await until(lambda: prefill.slots() == {"slots": 16, "free": 16})
    await until(lambda: decode.slots() == {"slots": 16, "free": 16})


async def test_another_fingerprint_closes_the_sessions(pods: World) -> None:
    prefill, decode = await pods.pair()
    assert isinstance(await fetched(prefill, decode), Loaded)
    prefill.agent.close()
    await until(lambda: not prefill.core.attached)
    assert len(prefill.core.state()["sessions"]) == 1
    other = type(prefill.agent)(prefill.agent.directory, "prefill", range(4), 4, {"fingerprint": {"model": "other"}})
    await other.attach()
    await until(lambda: not prefill.core.state()["sessions"])
    end = await fetched(Pod(prefill.core, other), decode, 2)
    other.close()
    assert isinstance(end, LoadFailed) and end.reason == "fingerprint_mismatch"


# ---- strangers on the peer port ----


async def stranger(pods: World, pod: Pod) -> Connection:
    return await pods.network.transport().connect(*pod.core.address, 1.0)


@pytest.mark.parametrize(
    ("payload", "refusal"),
    [
        (b"\x80\x04\x95", Refusal.FRAME),
        (b"", Refusal.FRAME),
        (b"x" * 20_000, Refusal.FRAME),
        (b"\xff" * MAX_CONTROL_BYTES, Refusal.FRAME),
        (encode(Reserve("0" * 32, 0, 0, 4, 0, 1, ["none"], 1000, 0)), Refusal.PROTOCOL),
        (encode(Reject("internal", "no", False)), Refusal.BY_PEER),
    ],
)
async def test_what_is_no_handshake_is_closed_and_counted(pods: World, payload: bytes, refusal: Refusal) -> None:
    prefill, decode = await pods.pair()
    connection = await stranger(pods, prefill)
    connection.send_control(payload)
    await until(lambda: prefill.metric("rejected_connections_total", reason=refusal.value) == 1)
    assert isinstance(await fetched(prefill, decode), Loaded)


async def test_silence_is_closed_in_time(pods: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry_runtime.sidecar.door.TIMEOUT_SECONDS", 0.1)
    prefill = await pods.pod(Role.PREFILL)
    connection = await stranger(pods, prefill)
    message = decode(await connection.receive_control(MAX_CONTROL_BYTES))
    assert isinstance(message, Reject) and "0.1 s" in message.message
    assert prefill.metric("rejected_connections_total", reason="timeout") == 1


async def test_too_many_strangers_keep_nobody_out(pods: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry_runtime.transport.doorway.MAX_UNAUTHENTICATED", 4)
    prefill, other = await pods.pod(Role.PREFILL), await pods.pod(Role.DECODE)
    silent = [await stranger(pods, prefill) for _ in range(4)]
    await asyncio.sleep(0)
    assert isinstance(await fetched(prefill, other), Loaded)
    message = decode(await silent[0].receive_control(MAX_CONTROL_BYTES))
    assert isinstance(message, Reject) and message.reason == "no_capacity" and message.retriable
    assert prefill.metric("rejected_connections_total", reason="capacity") == 1
    for connection in silent:
        await connection.close(1.0)


# ---- the agent's door ----


@pytest.mark.parametrize(
    ("attach", "text"),
    [
        ({"version": 99}, "ring protocol 99"),
        ({"role": "decode"}, "'decode'"),
        ({"first_layer": 3, "layer_count": 9}, "layers"),
    ],
)
async def test_an_engine_that_does_not_fit_is_told_why(pods: World, attach: dict[str, Any], text: str) -> None:
    prefill = await pods.pod(Role.PREFILL, attach=attach, attached=False)
    answer = await prefill.agent.attach()
    assert isinstance(answer, Refused) and text in answer.message
    assert not prefill.core.ready
