"""The sidecar's HTTP, and what its figures are."""

from __future__ import annotations

import socket

import pytest
from aiohttp.test_utils import TestClient, TestServer

from kvferry_contract.config import Role
from kvferry_runtime.errors import Reason, SettingsError
from kvferry_runtime.ring.messages import Loaded
from kvferry_runtime.sidecar import http
from kvferry_runtime.wire.effects import DropReason
from kvferry_runtime.wire.handshake import Refusal
from scripted_agent import Prompt
from sidecar_pods import World, transfer_id


async def test_health_readiness_state_and_records(pods: World) -> None:
    prefill = await pods.pod(Role.PREFILL, attached=False)
    decode = await pods.pod(Role.DECODE)
    async with TestClient(TestServer(http.application(prefill.core))) as client:
        assert (await client.get("/healthz")).status == 200
        assert (await client.get("/readyz")).status == 503
        await prefill.agent.attach()
        assert (await client.get("/readyz")).status == 200
        prefill.agent.send(transfer_id(1), Prompt(500, range(4)))
        decode.agent.fetch(transfer_id(1), [prefill.peer], 500)
        assert isinstance(await decode.agent.end(transfer_id(1)), Loaded)
        await prefill.agent.end(transfer_id(1))
        prefill.agent.beat(1500)
        state = await (await client.get("/v1/state")).json()
        assert state["ring"] == {"slots": 16, "free": 16, "posted": 0, "lent": 0, "in_flight": 0, "lost": 0}
        assert state["sessions"][0]["lanes"] == ["memory:process"]
        assert state["transfers"] == {"open_send": 0, "open_receive": 0}
        assert state["lanes"] == ["memory:process"]
        record = await (await client.get(f"/v1/transfers/{transfer_id(1)}")).json()
        assert record["direction"] == "send" and record["state"] == "committed" and record["chunks"] == 16
        assert record["wire_seconds"] > 0 and 0 <= record["hidden_share"] <= 1
        assert record["goodput_bytes_per_s"] == pytest.approx(record["bytes_raw"] / record["wire_seconds"])
        listed = await (await client.get("/v1/transfers")).json()
        assert [item["id"] for item in listed["transfers"]] == [transfer_id(1)]
        missing = await client.get("/v1/transfers/unknown")
        assert missing.status == 404 and "unknown" in (await missing.json())["error"]["message"]


async def test_state_tells_what_a_router_wants_to_know(pods: World) -> None:
    prefill, decode = await pods.pair()
    assert prefill.core.state()["totals"] == {
        "sent": 0, "bytes_raw": 0, "bytes_wire": 0, "wire_seconds": 0.0, "hidden_seconds": 0.0,
        "max_relative_error": None,
    }  # fmt: skip
    prefill.agent.send(transfer_id(1), Prompt(500, range(4)))
    decode.agent.fetch(transfer_id(1), [prefill.peer], 500)
    assert isinstance(await decode.agent.end(transfer_id(1)), Loaded)
    await prefill.agent.end(transfer_id(1))
    sent, received = prefill.core.state(), decode.core.state()
    totals, record = sent["totals"], prefill.record(transfer_id(1))
    assert (totals["sent"], totals["bytes_raw"], totals["bytes_wire"]) == (1, record["bytes_raw"], record["bytes_wire"])
    assert 0 <= totals["hidden_seconds"] <= totals["wire_seconds"] == pytest.approx(record["wire_seconds"])
    assert received["totals"]["sent"] == 0, "what was received is told by the one who sent it"
    assert sent["fingerprint"] == received["fingerprint"] != ""
    assert {"memlock_bytes", "devices"} <= sent.keys()


async def test_every_series_is_there_from_the_start_and_none_holds_an_id(pods: World) -> None:
    """Case 45."""
    prefill, decode = await pods.pair()
    for direction in ("send", "receive"):
        for reason in Reason:
            labels = {"direction": direction, "reason": reason.value}
            assert prefill.core.metrics.registry.get_sample_value("kvferry_transfers_failed_total", labels) == 0
    for refusal in Refusal:
        value = prefill.core.metrics.registry.get_sample_value(
            "kvferry_rejected_connections_total", {"reason": refusal.value}
        )
        assert value == 0
    for drop in DropReason:
        assert (
            prefill.core.metrics.registry.get_sample_value("kvferry_chunks_dropped_total", {"reason": drop.value}) == 0
        )
    prefill.agent.send(transfer_id(1), Prompt(500, range(4)))
    decode.agent.fetch(transfer_id(1), [prefill.peer], 500)
    assert isinstance(await decode.agent.end(transfer_id(1)), Loaded)
    await prefill.agent.end(transfer_id(1))
    text = prefill.core.metrics.exposition().decode()
    assert transfer_id(1) not in text
    assert 'kvferry_transfers_committed_total{direction="send"} 1.0' in text
    assert prefill.metric("raw_bytes_total", direction="send") == 500 * 4 * 32
    failed = prefill.core.metrics.registry.get_sample_value
    assert (
        sum(failed("kvferry_transfers_failed_total", {"direction": "send", "reason": r.value}) or 0 for r in Reason)
        == 0
    )


async def test_an_address_in_use_is_named(pods: World) -> None:
    prefill = await pods.pod(Role.PREFILL)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"127.0.0.1:{port} is in use"):
            await http.serve(prefill.core, "127.0.0.1", port)


async def test_a_peer_port_in_use_leaves_nothing_behind(pods: World) -> None:
    prefill = await pods.pod(Role.PREFILL)
    with pytest.raises(SettingsError, match="in use"):
        await pods.pod(Role.PREFILL, port=prefill.core.address[1])
    assert not list((pods.directory / "pod-1").iterdir())
