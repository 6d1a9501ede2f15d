"""`kvferry-runtime sidecar --trace`: what two real sidecars write about a transfer when they end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from kvferry_contract import env
from kvferry_contract.config import Role
from kvferry_runtime.ring.messages import Loaded
from kvferry_runtime.trace import chrome
from kvferry_runtime.trace.events import Phase, Trace
from own_addresses import own_address
from scripted_agent import TOKEN_BYTES, Prompt
from sidecar_pods import transfer_id
from sidecar_processes import SidecarProcess, running

pytest.importorskip("ucxx")

TOKENS = 300


@pytest.mark.slow
async def test_every_chunk_is_sent_and_received_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "traces" / f"{role.value}.json" for role in (Role.PREFILL, Role.DECODE)]
    sides = []
    for number, (file, role) in enumerate(zip(files, (Role.PREFILL, Role.DECODE), strict=True), start=1):
        monkeypatch.setenv(env.TRACE, str(file))
        sides.append(SidecarProcess(tmp_path / role.value, own_address(number), role))
    async with running(*sides):
        sender, receiver = [await side.agent() for side in sides]
        sender.send(transfer_id(1), Prompt(TOKENS, range(4)))
        receiver.fetch(transfer_id(1), [sides[0].peer], TOKENS)
        loaded = await receiver.end(transfer_id(1))
        await sender.end(transfer_id(1))
        sender.close()
        receiver.close()
        for side in sides:
            side.kill(signal.SIGTERM)
            assert await side.wait() == 0
    assert isinstance(loaded, Loaded)
    sent, received = (_trace(file) for file in files)
    assert {event.phase for event in sent.events} == {Phase.SENT}
    assert {event.phase for event in received.events} == {Phase.RECEIVED}
    for trace in (sent, received):
        assert sorted(event.sequence for event in trace.events) == list(range(loaded.chunks))
        assert sum(event.size for event in trace.events) == loaded.wire_bytes == TOKENS * 4 * TOKEN_BYTES
    assert sent.clock == received.clock
    assert min(event.began_ns for event in sent.events) < min(event.ended_ns for event in received.events)


def _trace(file: Path) -> Trace:
    (trace,) = chrome.load(file.read_text(), str(file))
    return trace
