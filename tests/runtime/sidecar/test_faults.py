"""What becomes of transfers when the network, a peer or an engine fails: one outcome, right bytes, all slots back."""

from __future__ import annotations

import asyncio
import math

import pytest

from kvferry_contract.config import FailurePolicy, Role
from kvferry_runtime.ring.messages import Loaded, LoadFailed, Sent
from kvferry_runtime.transport.faulty import Fault, FaultKind, FaultPlan, FaultyTransport, Way
from scripted_agent import DEADLINE, Prompt
from sidecar_pods import TICK, Pod, World, same, transfer_id, until

TOKENS = 1500
"""12 chunks for each of the 4 layers."""


def faulty(pods: World, *faults: Fault) -> FaultyTransport:
    return FaultyTransport(pods.network.transport(), FaultPlan(faults, seed=1))


async def start(prefill: Pod, decode: Pod, prompt: Prompt, seconds: float = DEADLINE, number: int = 1) -> str:
    name = transfer_id(number)
    prefill.agent.send(name, prompt, seconds=seconds)
    decode.agent.fetch(name, [prefill.peer], prompt.tokens, seconds)
    return name


async def all_slots_back(*pods: Pod) -> None:
    """Nothing is held for a transfer: slots are free, or posted for a session."""
    for pod in pods:
        await until(lambda pod=pod: set(pod.slots()) <= {"slots", "free", "posted"})
        assert pod.core.open_transfers == 0


@pytest.mark.parametrize("offset", [0, 60, 127, 128, 3000])
async def test_a_corrupted_chunk_is_sent_again(pods: World, offset: int) -> None:
    """In the header or in the payload."""
    prefill = await pods.pod(Role.PREFILL)
    decode = await pods.pod(
        Role.DECODE, transport=faulty(pods, Fault(FaultKind.CORRUPT, Way.DATA, first=3, every=11, offset=offset))
    )
    prompt = Prompt(TOKENS, range(4))
    name = await start(prefill, decode, prompt)
    assert isinstance(await decode.agent.end(name), Loaded)
    assert same(decode.agent, name, prompt)
    assert isinstance(end := await prefill.agent.end(name), Sent) and end.committed
    assert prefill.record(name)["resent"] == prefill.metric("chunks_resent_total", direction="send") > 0
    await all_slots_back(prefill, decode)


@pytest.mark.parametrize("offset", [10, 500])
async def test_a_chunk_that_is_bad_twice_fails_the_transfer(pods: World, offset: int) -> None:
    prefill = await pods.pod(Role.PREFILL)
    decode = await pods.pod(
        Role.DECODE, transport=faulty(pods, Fault(FaultKind.CORRUPT, Way.DATA, every=1, offset=offset))
    )
    name = await start(prefill, decode, Prompt(300, range(4)))
    assert isinstance(end := await decode.agent.end(name), LoadFailed) and end.reason == "corrupt"
    assert isinstance(sent := await prefill.agent.end(name), Sent) and sent.reason == "corrupt"
    assert decode.metric("transfers_failed_total", direction="receive", reason="corrupt") == 1
    await all_slots_back(prefill, decode)


async def test_a_chunk_that_the_agent_cannot_use_is_sent_again(pods: World) -> None:
    prefill, decode = await pods.pair()
    spoiled: set[int] = set()

    def spoil(header: object) -> bool:
        sequence: int = header.sequence  # type: ignore[attr-defined]
        first = sequence % 5 == 0 and sequence not in spoiled
        spoiled.add(sequence)
        return first

    decode.agent.spoil = spoil
    prompt = Prompt(TOKENS, range(4))
    name = await start(prefill, decode, prompt)
    assert isinstance(await decode.agent.end(name), Loaded)
    assert same(decode.agent, name, prompt)


async def test_a_lost_message_is_asked_for_again(pods: World) -> None:
    prefill = await pods.pod(Role.PREFILL, transport=faulty(pods, Fault(FaultKind.DROP, Way.DATA, first=5)), tick=0.2)
    decode = await pods.pod(Role.DECODE, tick=0.2)
    prompt = Prompt(TOKENS, range(4))
    name = await start(prefill, decode, prompt)
    assert isinstance(await decode.agent.end(name), Loaded)
    assert same(decode.agent, name, prompt)
    assert decode.record(name)["resent"] == 1


async def test_a_data_way_that_loses_everything_is_replaced(pods: World) -> None:
    """All credits are spent on messages that never arrive, while PINGs do: the next transfer gets a new session."""
    losses = Fault(FaultKind.DROP, Way.DATA, first=0, every=1)
    plan = FaultPlan((losses,))
    prefill = await pods.pod(Role.PREFILL, transport=FaultyTransport(pods.network.transport(), plan))
    decode = await pods.pod(Role.DECODE)
    prompt = Prompt(TOKENS, range(4))
    name = await start(prefill, decode, prompt)
    await until(lambda: plan.injected[Way.DATA, FaultKind.DROP] == 8)
    plan.heal()
    assert isinstance(end := await decode.agent.end(name), LoadFailed) and end.reason == "peer_lost"
    assert "do not arrive" in end.message
    assert isinstance(sent := await prefill.agent.end(name), Sent) and sent.reason == "peer_lost"
    await all_slots_back(prefill, decode)
    name = await start(prefill, decode, prompt, number=2)
    assert isinstance(await decode.agent.end(name), Loaded)
    assert same(decode.agent, name, prompt)


async def test_a_slow_engine_is_no_stalled_data_way(pods: World) -> None:
    """Everything that was sent has arrived; decode's engine just takes its time."""
    prefill, decode = await pods.pair()
    decode.agent.holding = True
    prompt = Prompt(TOKENS, range(4))
    name = await start(prefill, decode, prompt)
    await until(lambda: decode.agent.held == 8)
    await asyncio.sleep(40 * TICK)
    decode.agent.holding = False
    decode.agent.release()
    assert isinstance(await decode.agent.end(name), Loaded)
    assert same(decode.agent, name, prompt)


async def test_a_transfer_id_is_taken_once(pods: World) -> None:
    prefill, decode = await pods.pair()
    prompt = Prompt(100, range(4))
    name = await start(prefill, decode, prompt)
    assert isinstance(await decode.agent.end(name), Loaded)
    decode.agent.fetch(name, [prefill.peer], 100)
    assert isinstance(end := await decode.agent.end(name), LoadFailed) and "used before" in end.message
    assert decode.core.attached


async def test_reset_in_mid_transfer_fails_both_sides_and_the_next_one_works(pods: World) -> None:
    prefill = await pods.pod(Role.PREFILL, transport=faulty(pods, Fault(FaultKind.RESET, Way.DATA, first=6)))
    decode = await pods.pod(Role.DECODE)
    prompt = Prompt(TOKENS, range(4))
    name = await start(prefill, decode, prompt)
    assert isinstance(end := await decode.agent.end(name), LoadFailed) and end.reason == "peer_lost"
    assert isinstance(sent := await prefill.agent.end(name), Sent) and sent.reason == "peer_lost"
    await all_slots_back(prefill, decode)
    await until(lambda: decode.slots() == {"slots": 16, "free": 16})
    name = await start(prefill, decode, prompt, number=2)
    assert isinstance(await decode.agent.end(name), Loaded)
    assert same(decode.agent, name, prompt)
    for pod, direction in ((prefill, "send"), (decode, "receive")):
        assert pod.metric("transfers_failed_total", direction=direction, reason="peer_lost") == 1
        assert pod.metric("transfers_committed_total", direction=direction) == 1


@pytest.mark.parametrize("fault", [FaultKind.RESET, FaultKind.CORRUPT])
async def test_retry_tries_once_more_in_the_next_generation(pods: World, fault: FaultKind) -> None:
    sending = faulty(pods, Fault(FaultKind.RESET, Way.DATA, first=6)) if fault is FaultKind.RESET else None
    prefill = await pods.pod(Role.PREFILL, failure_policy=FailurePolicy.RETRY, transport=sending)
    decode = await pods.pod(Role.DECODE, failure_policy=FailurePolicy.RETRY)
    if fault is FaultKind.CORRUPT:
        decode.agent.spoil = lambda header: header.generation == 0 and header.sequence == 4
    prompt = Prompt(TOKENS, range(4))
    name = await start(prefill, decode, prompt)
    assert isinstance(await decode.agent.end(name), Loaded)
    assert same(decode.agent, name, prompt)
    assert isinstance(sent := await prefill.agent.end(name), Sent) and sent.committed
    assert prefill.record(name)["generation"] == decode.record(name)["generation"] == 1
    assert prefill.metric("transfers_retried_total", direction="send") == 1
    assert decode.metric("transfers_retried_total", direction="receive") == 1
    assert decode.agent.ends(name) == prefill.agent.ends(name) == 1
    await all_slots_back(prefill, decode)


async def test_retry_gives_up_after_the_second_generation(pods: World) -> None:
    prefill, decode = await pods.pair(FailurePolicy.RETRY)
    decode.agent.spoil = lambda header: header.sequence == 4
    name = await start(prefill, decode, Prompt(TOKENS, range(4)))
    assert isinstance(end := await decode.agent.end(name), LoadFailed) and end.reason == "corrupt"
    assert isinstance(sent := await prefill.agent.end(name), Sent) and sent.reason == "corrupt"
    assert decode.record(name)["generation"] == 1
    await all_slots_back(prefill, decode)


async def test_a_silent_peer_is_dead_after_three_pings(pods: World) -> None:
    """A cut link: nothing is reset, nothing arrives."""
    stalled = (
        Fault(FaultKind.STALL, Way.CONTROL, first=6, seconds=math.inf),
        Fault(FaultKind.STALL, Way.DATA, first=2, seconds=math.inf),
    )
    prefill = await pods.pod(Role.PREFILL, transport=faulty(pods, *stalled))
    decode = await pods.pod(Role.DECODE)
    name = await start(prefill, decode, Prompt(TOKENS, range(4)))
    assert isinstance(end := await decode.agent.end(name), LoadFailed) and end.reason == "peer_lost"
    assert isinstance(sent := await prefill.agent.end(name), Sent) and sent.reason == "peer_lost"
    await all_slots_back(prefill, decode)


@pytest.mark.parametrize("peer", ["127.0.0.1:9", "nonsense", ":7400", "host:port"])
async def test_nobody_there(pods: World, peer: str) -> None:
    decode = await pods.pod(Role.DECODE)
    decode.agent.fetch(transfer_id(1), [peer], 100)
    assert isinstance(end := await decode.agent.end(transfer_id(1)), LoadFailed)
    assert end.reason == "peer_unreachable" and peer in end.message
    assert decode.metric("transfers_failed_total", direction="receive", reason="peer_unreachable") == 1
    assert decode.metric("dial_failures_total", reason="peer_unreachable") == 1
    assert decode.slots() == {"slots": 16, "free": 16}


@pytest.mark.parametrize("offered", [True, False])
async def test_the_deadline_ends_what_never_comes(pods: World, offered: bool) -> None:
    """Case 41: never sealed, or never offered at all: a key that nobody knows."""
    prefill, decode = await pods.pair()
    if offered:
        prefill.agent.offer(transfer_id(1), Prompt(300, range(4)), seconds=0.3)
    decode.agent.fetch(transfer_id(1), [prefill.peer], 300, seconds=0.3)
    assert isinstance(end := await decode.agent.end(transfer_id(1)), LoadFailed) and end.reason == "deadline"
    if offered:
        assert isinstance(sent := await prefill.agent.end(transfer_id(1)), Sent) and sent.reason == "deadline"
    await all_slots_back(prefill, decode)


async def test_an_engine_that_dies_ends_its_transfers_at_both_sides(pods: World) -> None:
    prefill, decode = await pods.pair()
    prefill.agent.holding = True
    name = await start(prefill, decode, Prompt(TOKENS, range(4)))
    await until(lambda: prefill.agent.held > 0)
    prefill.agent.close()
    assert isinstance(end := await decode.agent.end(name), LoadFailed) and end.reason == "engine_lost"
    await all_slots_back(prefill, decode)
    assert prefill.slots() == {"slots": 16, "free": 16}
    assert not prefill.core.ready and decode.core.ready


async def test_a_decode_engine_that_dies_frees_prefill(pods: World) -> None:
    prefill, decode = await pods.pair()
    decode.agent.holding = True
    name = await start(prefill, decode, Prompt(TOKENS, range(4)))
    await until(lambda: decode.agent.held > 0)
    decode.agent.close()
    assert isinstance(sent := await prefill.agent.end(name), Sent) and sent.reason == "engine_lost"
    await all_slots_back(prefill, decode)


@pytest.mark.parametrize("moment", ["before prefill knows it", "in mid-transfer"])
async def test_a_cancelled_fetch_frees_both_sides(pods: World, moment: str) -> None:
    """Case 43."""
    prefill, decode = await pods.pair()
    name, prompt = transfer_id(1), Prompt(TOKENS, range(4))
    decode.agent.fetch(name, [prefill.peer], TOKENS)
    if moment == "in mid-transfer":
        prefill.agent.offer(name, prompt)
        prefill.agent.announce(name, 0, 4)
        await until(lambda: decode.record(name)["chunks"] == 4)
    else:
        await until(lambda: bool(prefill.core.state()["sessions"]))
        await asyncio.sleep(5 * TICK)
    decode.agent.cancel(name)
    assert isinstance(end := await decode.agent.end(name), LoadFailed) and end.reason == "cancelled"
    if moment != "in mid-transfer":
        await asyncio.sleep(5 * TICK)
        prefill.agent.offer(name, prompt)
    assert isinstance(sent := await prefill.agent.end(name), Sent) and sent.reason == "cancelled"
    prefill.agent.announce(name)
    prefill.agent.cancel(name)
    await all_slots_back(prefill, decode)
    assert isinstance(await _next(prefill, decode), Loaded)


async def _next(prefill: Pod, decode: Pod) -> object:
    name = await start(prefill, decode, Prompt(100, range(4)), number=101)
    return await decode.agent.end(name)


async def test_a_hundred_cancelled_transfers_leave_nothing_behind(pods: World) -> None:
    """Case 43: the hundred-and-first is served."""
    prefill, decode = await pods.pair()
    for number in range(1, 101):
        name = transfer_id(number)
        decode.agent.fetch(name, [prefill.peer], 200, seconds=2)
        if number % 3:
            prefill.agent.send(name, Prompt(200, range(4)), seconds=2)
        if number % 5 == 0:
            await asyncio.sleep(0)
        decode.agent.cancel(name)
    for number in range(1, 101):
        await decode.agent.end(transfer_id(number))
        if number % 3:
            await prefill.agent.end(transfer_id(number))
    await all_slots_back(prefill, decode)
    assert isinstance(await _next(prefill, decode), Loaded)


async def test_prefill_cancel_reaches_decode(pods: World) -> None:
    prefill, decode = await pods.pair()
    name = transfer_id(1)
    prefill.agent.offer(name, Prompt(TOKENS, range(4)))
    decode.agent.fetch(name, [prefill.peer], TOKENS)
    await until(lambda: prefill.record(name)["state"] == "open")
    prefill.agent.cancel(name, "preempted")
    assert isinstance(end := await decode.agent.end(name), LoadFailed)
    assert (end.reason, end.message) == ("cancelled", "preempted")


@pytest.mark.parametrize("frees", [True, False])
async def test_a_full_pool_at_decode_delays_or_fails_but_never_hangs(pods: World, frees: bool) -> None:
    """Case 25."""
    prefill = await pods.pod(Role.PREFILL)
    decode = await pods.pod(Role.DECODE, slots=4)
    decode.agent.holding = True
    names = []
    prompts = []
    for number in range(1, 7):
        prompts.append(Prompt(64, range(4), seed=number))
        names.append(await start(prefill, decode, prompts[-1], seconds=DEADLINE if frees else 2.0, number=number))
    await until(lambda: decode.agent.held == 2)
    if frees:
        decode.agent.holding = False
        decode.agent.release()
        for name, prompt in zip(names, prompts, strict=True):
            assert isinstance(await decode.agent.end(name), Loaded)
            assert same(decode.agent, name, prompt)
    else:
        await until(lambda: sum(prefill.agent.ends(name) for name in names) == 6)
        decode.agent.release()
        reasons = [end.reason for name in names if isinstance(end := await decode.agent.end(name), LoadFailed)]
        assert reasons == ["no_capacity"] * 6
    await all_slots_back(prefill, decode)
    assert decode.slots() == {"slots": 4, "free": 2, "posted": 2}


async def test_a_slow_decode_does_not_stop_the_others(pods: World) -> None:
    """Case 35: it holds no more of prefill's slots than its share."""
    prefill = await pods.pod(Role.PREFILL, slots=16)
    slow = await pods.pod(Role.DECODE, slots=32)
    free = await pods.pod(Role.DECODE)
    slow.agent.holding = True
    stuck = [await start(prefill, slow, Prompt(TOKENS, range(4)), number=number) for number in range(1, 6)]
    await until(lambda: slow.agent.held > 0)
    for number in range(11, 16):
        prompt = Prompt(TOKENS, range(4), seed=number)
        name = await start(prefill, free, prompt, number=number)
        assert isinstance(await free.agent.end(name), Loaded)
        assert same(free.agent, name, prompt)
    assert all(prefill.agent.ends(name) == 0 for name in stuck)
    slow.agent.holding = False
    slow.agent.release()
    for name in stuck:
        assert isinstance(await slow.agent.end(name), Loaded)
    await all_slots_back(prefill, slow, free)


async def test_an_agent_that_keeps_slots_is_still_told(pods: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late is better than never, and its slots are not lent to anybody else meanwhile."""
    monkeypatch.setattr("kvferry_runtime.wire.sender.GRACE_SECONDS", 0.2)
    monkeypatch.setattr("kvferry_runtime.wire.receiver.GRACE_SECONDS", 0.2)
    prefill, decode = await pods.pair()
    assert isinstance(await _next(prefill, decode), Loaded)  # their session is open: the deadline is for the rest alone
    prefill.agent.holding = True
    name = await start(prefill, decode, Prompt(TOKENS, range(4)), seconds=2.0)
    await until(lambda: prefill.agent.held > 0)
    assert isinstance(await prefill.agent.end(name), Sent)
    assert isinstance(await decode.agent.end(name), LoadFailed)
    held = prefill.agent.held
    assert held and prefill.slots()["lent"] == held
    prefill.agent.release()
    await all_slots_back(prefill, decode)
    assert prefill.agent.ends(name) == 1


@pytest.mark.parametrize("side", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize("first", range(0, 24, 2))
async def test_a_damaged_control_message_never_becomes_a_wrong_answer(pods: World, side: Role, first: int) -> None:
    """The session ends, or the transfer does; what is loaded is right."""
    broken = faulty(pods, Fault(FaultKind.CORRUPT, Way.CONTROL, first=first))
    prefill = await pods.pod(Role.PREFILL, transport=broken if side is Role.PREFILL else None)
    decode = await pods.pod(Role.DECODE, transport=broken if side is Role.DECODE else None)
    prompt = Prompt(TOKENS, range(4))
    name = await start(prefill, decode, prompt, seconds=1.0)
    end = await decode.agent.end(name)
    if isinstance(end, Loaded):
        assert same(decode.agent, name, prompt) and end.first_token == 7
    else:
        assert isinstance(end, LoadFailed) and end.reason in ("peer_lost", "handshake_failed", "deadline")
    assert isinstance(await prefill.agent.end(name), Sent)
    await all_slots_back(prefill, decode)
