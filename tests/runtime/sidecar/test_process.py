"""Real processes over UCX: signals, restarts, idle cost."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from kvferry_contract.config import Role
from kvferry_runtime.ring.messages import Loaded, LoadFailed, Sent
from own_addresses import own_address
from rest import rest_of
from scripted_agent import Prompt
from sidecar_pods import same, transfer_id, until
from sidecar_processes import SidecarProcess, running

pytestmark = pytest.mark.slow

TOKENS = 20_000


def sidecars(directory: Path, **options: object) -> tuple[SidecarProcess, SidecarProcess]:
    options = {"chunk_bytes": 1 << 16, "buffer_bytes": 1 << 21} | options
    return (
        SidecarProcess(directory / "p", own_address(1), Role.PREFILL, **options),
        SidecarProcess(directory / "d", own_address(2), Role.DECODE, **options),
    )


async def test_transfer_health_records_and_a_clean_stop(tmp_path: Path) -> None:
    prefill, decode = sidecars(tmp_path)
    async with running(prefill, decode):
        assert (await prefill.get("/readyz"))["reason"] == "no engine is attached"
        sender, receiver = await prefill.agent(), await decode.agent()
        assert (await prefill.get("/readyz"))["status"] == "ready"
        prompt = Prompt(TOKENS, range(4))
        sender.send(transfer_id(1), prompt)
        receiver.fetch(transfer_id(1), [prefill.peer], TOKENS)
        assert isinstance(await receiver.end(transfer_id(1)), Loaded)
        assert same(receiver, transfer_id(1), prompt)
        records = [await side.get(f"/v1/transfers/{transfer_id(1)}") for side in (prefill, decode)]
        assert records[0]["digest"] == records[1]["digest"] and records[0]["lanes"] == ["tcp:lo"]
        assert (await decode.get("/v1/state"))["sessions"][0]["peer"] == f"ns/m-prefill-{prefill.host}"
        assert "kvferry_transfers_committed_total" in await decode.get("/metrics")
        prefill.kill(signal.SIGTERM)
        decode.kill(signal.SIGTERM)
        assert (await prefill.wait(), await decode.wait()) == (0, 0)
        assert not list(prefill.ring.iterdir()) and not list(decode.ring.iterdir())
        sender.close()
        receiver.close()


async def test_prefill_killed_in_mid_transfer_and_started_again(tmp_path: Path) -> None:
    """Case 23."""
    prefill, decode = sidecars(tmp_path)
    async with running(prefill, decode):
        sender, receiver = await prefill.agent(), await decode.agent()
        sender.offer(transfer_id(1), Prompt(TOKENS, range(4)))
        receiver.fetch(transfer_id(1), [prefill.peer], TOKENS)
        sender.announce(transfer_id(1), 0, 20)
        await until(lambda: any(any(data) for data in receiver.loaded[transfer_id(1)].values()))
        prefill.kill(signal.SIGKILL)
        await prefill.wait()
        assert isinstance(end := await receiver.end(transfer_id(1)), LoadFailed) and end.reason == "peer_lost"
        sender.close()
        await prefill.start()
        sender, prompt = await prefill.agent(), Prompt(TOKENS, range(4), seed=2)
        sender.send(transfer_id(2), prompt)
        receiver.fetch(transfer_id(2), [prefill.peer], TOKENS)
        assert isinstance(await receiver.end(transfer_id(2)), Loaded)
        assert same(receiver, transfer_id(2), prompt)
        sender.close()
        receiver.close()


async def test_a_stopped_sidecar_is_dead_and_comes_back(tmp_path: Path) -> None:
    prefill, decode = sidecars(tmp_path)
    async with running(prefill, decode):
        sender, receiver = await prefill.agent(), await decode.agent()
        sender.offer(transfer_id(1), Prompt(TOKENS, range(4)))
        receiver.fetch(transfer_id(1), [prefill.peer], TOKENS)
        sender.announce(transfer_id(1), 0, 20)
        await until(lambda: any(any(data) for data in receiver.loaded[transfer_id(1)].values()))
        decode.kill(signal.SIGSTOP)
        assert isinstance(end := await sender.end(transfer_id(1)), Sent) and end.reason == "peer_lost"
        state = await prefill.get("/v1/state")
        assert state["ring"]["free"] == state["ring"]["slots"]
        decode.kill(signal.SIGCONT)
        assert isinstance(await receiver.end(transfer_id(1)), LoadFailed)
        prompt = Prompt(TOKENS, range(4), seed=2)
        sender.send(transfer_id(2), prompt)
        receiver.fetch(transfer_id(2), [prefill.peer], TOKENS)
        assert isinstance(await receiver.end(transfer_id(2)), Loaded)
        assert same(receiver, transfer_id(2), prompt)
        sender.close()
        receiver.close()


async def test_idle_cost(tmp_path: Path) -> None:
    """With an open session: a few wake-ups a second, and little memory beside the ring.

    What a wake-up costs depends on the machine: docs/benchmarks.md has the CPU time.
    """
    prefill, decode = sidecars(tmp_path)
    async with running(prefill, decode):
        sender, receiver = await prefill.agent(), await decode.agent()
        sender.send(transfer_id(1), Prompt(100, range(4)))
        receiver.fetch(transfer_id(1), [prefill.peer], 100)
        assert isinstance(await receiver.end(transfer_id(1)), Loaded)
        pids = [side.process.pid for side in (prefill, decode)]
        rests = await rest_of(pids, 3.0)
        assert not any(rest.spins for rest in rests), rests
        for memory in (psutil.Process(pid).memory_info() for pid in pids):
            assert memory.rss - memory.shared < 150 << 20
        sender.close()
        receiver.close()
