"""What people reported of such systems, shown with real processes over UCX: drain, full pools, clients that leave."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvferry_contract.config import Role
from kvferry_runtime.ring.memory import PAGE
from kvferry_runtime.ring.messages import Loaded, LoadFailed, Sent
from own_addresses import own_address
from rest import rest_of
from scripted_agent import DEADLINE, SECONDS, Prompt, ScriptedAgent
from sidecar_pods import same, transfer_id, until
from sidecar_processes import SidecarProcess, running

pytestmark = pytest.mark.slow

TOKENS = 20_000
"""2.5 MB in 40 chunks."""
CHUNK = 1 << 16


def sidecar(directory: Path, number: int, role: Role, **options: Any) -> SidecarProcess:
    options = {"chunk_bytes": CHUNK, "buffer_bytes": 1 << 21} | options
    return SidecarProcess(directory / str(number), own_address(number), role, **options)


async def in_state(side: SidecarProcess, condition: Callable[[Any], bool]) -> None:
    """Wait until what `/v1/state` says fulfils the condition."""
    async with asyncio.timeout(SECONDS):
        while not condition(await side.get("/v1/state")):  # noqa: ASYNC110  another process brings it about
            await asyncio.sleep(0.02)


def settled(state: Any) -> bool:
    """Every slot is free, or posted for a session that may go on; no transfer is open."""
    ring = state["ring"]
    return bool(ring["free"] + ring["posted"] == ring["slots"]) and not any(state["transfers"].values())


async def all_free(*sides: SidecarProcess) -> None:
    for side in sides:
        await in_state(side, settled)


def begin(sender: ScriptedAgent, receiver: ScriptedAgent, peer: str, numbers: range) -> dict[str, Prompt]:
    """Offer and fetch these; a tenth of each is announced."""
    prompts = {transfer_id(number): Prompt(TOKENS, range(4), seed=number) for number in numbers}
    for name, prompt in prompts.items():
        sender.offer(name, prompt)
        receiver.fetch(name, [peer], TOKENS)
        sender.announce(name, 0, 4)
    return prompts


async def arrived(receiver: ScriptedAgent, names: Any) -> None:
    await until(lambda: all(any(any(data) for data in receiver.loaded[name].values()) for name in names))


async def test_sigterm_to_prefill_lets_open_transfers_end(tmp_path: Path) -> None:
    """Case 22: nothing new is taken, all that was open arrives, and the ring goes only then."""
    prefill, decode = sidecar(tmp_path, 1, Role.PREFILL, drain=SECONDS), sidecar(tmp_path, 2, Role.DECODE)
    async with running(prefill, decode):
        sender, receiver = await prefill.agent(), await decode.agent()
        prompts = begin(sender, receiver, prefill.peer, range(1, 9))
        await arrived(receiver, prompts)
        prefill.kill(signal.SIGTERM)
        await in_state(prefill, lambda state: state["draining"])
        receiver.fetch(transfer_id(20), [prefill.peer], 10)
        assert isinstance(refused := await receiver.end(transfer_id(20)), LoadFailed) and refused.reason == "draining"
        assert list(prefill.ring.iterdir())
        for name in prompts:
            sender.announce(name, 4)
            sender.seal(name)
        for name, prompt in prompts.items():
            assert isinstance(await receiver.end(name), Loaded)
            assert same(receiver, name, prompt)
            assert isinstance(sent := await sender.end(name), Sent) and sent.committed
        assert await prefill.wait() == 0
        assert not list(prefill.ring.iterdir())
        await all_free(decode)
        sender.close()
        receiver.close()


async def test_a_drain_that_is_shorter_than_the_transfers_ends_them_with_a_clean_error(tmp_path: Path) -> None:
    """Case 22, with a drain limit below what the transfers take: decode never dies."""
    prefill, decode = sidecar(tmp_path, 1, Role.PREFILL, drain=1.0), sidecar(tmp_path, 2, Role.DECODE)
    async with running(prefill, decode):
        sender, receiver = await prefill.agent(), await decode.agent()
        prompts = begin(sender, receiver, prefill.peer, range(1, 9))
        await arrived(receiver, prompts)
        prefill.kill(signal.SIGTERM)
        for name in prompts:
            assert isinstance(end := await receiver.end(name), LoadFailed) and end.reason == "draining"
            assert isinstance(sent := await sender.end(name), Sent) and sent.reason == "draining"
        assert await prefill.wait() == 0
        assert (await decode.get("/readyz"))["status"] == "ready"
        await all_free(decode)
        sender.close()
        receiver.close()


async def whole(sender: ScriptedAgent, receiver: ScriptedAgent, prefill: SidecarProcess, number: int) -> None:
    """One short transfer that arrives."""
    sender.send(transfer_id(number), Prompt(10, range(2)))
    receiver.fetch(transfer_id(number), [prefill.peer], 10)
    assert isinstance(await receiver.end(transfer_id(number)), Loaded)


@pytest.mark.parametrize("frees", [True, False])
async def test_a_pool_of_four_slots_and_six_requests(tmp_path: Path, frees: bool) -> None:
    """Case 25: decode frees after 2 s, or never. Nobody spins while it waits."""
    prefill = sidecar(tmp_path, 1, Role.PREFILL)
    decode = sidecar(tmp_path, 2, Role.DECODE, buffer_bytes=4 * (CHUNK + PAGE) + PAGE)
    async with running(prefill, decode):
        assert (await decode.get("/v1/state"))["ring"]["slots"] == 4
        sender, receiver = await prefill.agent(range(2), 2), await decode.agent(range(2), 2)
        await whole(sender, receiver, prefill, 7)  # their session is open: the deadlines below are for the rest alone
        receiver.holding = True
        # one chunk for each of their two layers
        prompts = {transfer_id(number): Prompt(1000, range(2), seed=number) for number in range(6)}
        for name, prompt in prompts.items():
            sender.send(name, prompt, seconds=DEADLINE if frees else 5.0)
            receiver.fetch(name, [prefill.peer], 1000, seconds=DEADLINE if frees else 5.0)
        await until(lambda: receiver.held > 0)
        rests = await rest_of([prefill.process.pid, decode.process.pid], 2.0)
        assert not any(rest.spins for rest in rests), rests
        if frees:
            receiver.holding = False
            receiver.release()
            for name, prompt in prompts.items():
                assert isinstance(await receiver.end(name), Loaded)
                assert same(receiver, name, prompt)
        else:
            for name in prompts:
                assert isinstance(sent := await sender.end(name), Sent) and not sent.committed
            receiver.release()
            ends = [await receiver.end(name) for name in prompts]
            # one at most has all its chunks in the pool that decode never frees: it waits for decode, not for room
            reasons = sorted(end.reason for end in ends if isinstance(end, LoadFailed))
            assert reasons in (["deadline"] + ["no_capacity"] * 5, ["no_capacity"] * 6)
        receiver.holding = False
        await all_free(prefill, decode)
        await whole(sender, receiver, prefill, 8)
        sender.close()
        receiver.close()


async def test_two_decodes_of_which_one_is_full(tmp_path: Path) -> None:
    """Case 35: five requests for each, layers that take 20 ms; what was hidden behind them is exported."""
    prefill = sidecar(tmp_path, 1, Role.PREFILL)
    full, free = (sidecar(tmp_path, number, Role.DECODE) for number in (2, 3))
    async with running(prefill, full, free):
        sender, stuck, receiver = await prefill.agent(), await full.agent(), await free.agent()
        stuck.holding = True
        waiting = [transfer_id(number) for number in range(1, 6)]
        for name in waiting:
            sender.send(name, Prompt(TOKENS, range(4)))
            stuck.fetch(name, [prefill.peer], TOKENS)
        await until(lambda: stuck.held > 0)
        for number in range(11, 16):
            name, prompt = transfer_id(number), Prompt(TOKENS, range(4), seed=number)
            sender.offer(name, prompt)
            receiver.fetch(name, [prefill.peer], TOKENS)
            for layer in range(4):
                await asyncio.sleep(0.02)
                sender.announce(name, 10 * layer, 10 * layer + 10)
            sender.seal(name)
            assert isinstance(await receiver.end(name), Loaded)
            assert same(receiver, name, prompt)
        assert not any(sender.ends(name) for name in waiting)
        record = await prefill.get(f"/v1/transfers/{transfer_id(11)}")
        assert {"hidden_seconds", "hidden_share"} <= set(record)
        assert "kvferry_hidden_wire_seconds_total" in await prefill.get("/metrics")
        stuck.holding = False
        stuck.release()
        for name in waiting:
            assert isinstance(await stuck.end(name), Loaded)
        await all_free(prefill, full, free)
        for agent in (sender, stuck, receiver):
            agent.close()


async def test_a_hundred_requests_whose_clients_have_gone(tmp_path: Path) -> None:
    """Case 43: before decode knows the request and while it waits, with a lease of 2 s; and while prefill is killed."""
    prefill, decode = sidecar(tmp_path, 1, Role.PREFILL), sidecar(tmp_path, 2, Role.DECODE)
    async with running(prefill, decode):
        sender, receiver = await prefill.agent(), await decode.agent()
        unknown, waiting, killed = (
            [transfer_id(number) for number in numbers] for numbers in (range(34), range(34, 67), range(67, 100))
        )
        prompt = Prompt(100, range(4))
        for name in unknown:
            sender.send(name, prompt, seconds=2)
        for name in waiting:
            receiver.fetch(name, [prefill.peer], 100)
        for name in waiting:
            receiver.cancel(name)
            sender.send(name, prompt, seconds=2)
        for name in waiting:
            assert isinstance(end := await receiver.end(name), LoadFailed) and end.reason == "cancelled"
        for name in unknown + waiting:
            assert isinstance(sent := await sender.end(name), Sent) and not sent.committed
        await all_free(prefill, decode)

        for name in killed:
            sender.offer(name, prompt)
            receiver.fetch(name, [prefill.peer], 100)
            sender.announce(name, 0, 1)
        await arrived(receiver, killed)
        prefill.kill(signal.SIGKILL)
        for name in killed[::2]:
            receiver.cancel(name)
        await prefill.wait()
        for name in killed:
            assert isinstance(end := await receiver.end(name), LoadFailed)
            assert end.reason in ("cancelled", "peer_lost")
        for name in unknown + waiting + killed:
            receiver.cancel(name)  # late, and of ids that decode never heard of
        await all_free(decode)
        ring = (await decode.get("/v1/state"))["ring"]
        assert ring["free"] == ring["slots"]
        sender.close()

        await prefill.start()
        sender = await prefill.agent()
        sender.send(transfer_id(101), prompt)
        receiver.fetch(transfer_id(101), [prefill.peer], 100)
        assert isinstance(await receiver.end(transfer_id(101)), Loaded)
        assert same(receiver, transfer_id(101), prompt)
        assert all(receiver.ends(name) == 1 for name in waiting + killed)
        sender.close()
        receiver.close()
