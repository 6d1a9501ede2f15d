"""Each fault does what it says, as often as the plan says."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kvferry_runtime.errors import ConnectionLost
from kvferry_runtime.transport.faulty import Fault, FaultKind, FaultPlan, FaultyTransport, Way
from kvferry_runtime.transport.memory import MemoryNetwork
from transport_pairs import Pair, connected, settled

LIMIT = 1000


@asynccontextmanager
async def sending_with(*faults: Fault, seed: int = 0) -> AsyncIterator[tuple[Pair, FaultPlan]]:
    """A pair whose near side has these faults."""
    network, plan = MemoryNetwork(), FaultPlan(faults, seed)
    async with connected(FaultyTransport(network.transport(), plan), network.transport()) as pair:
        yield pair, plan


def test_turns() -> None:
    once = Fault(FaultKind.DROP, Way.DATA, first=2)
    assert [number for number in range(9) if once.hits(number)] == [2]
    often = Fault(FaultKind.DROP, Way.DATA, first=1, every=3)
    assert [number for number in range(9) if often.hits(number)] == [1, 4, 7]


def test_the_same_seed_gives_the_same_faults() -> None:
    def drawn(seed: int) -> list[int]:
        plan = FaultPlan([Fault(FaultKind.DROP, Way.DATA, every=1, probability=0.3)], seed)
        return [number for number in range(200) if plan.on_send(Way.DATA)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 30 < len(drawn(1)) < 90


async def test_drop_lets_the_sender_believe_in_success() -> None:
    async with sending_with(
        Fault(FaultKind.DROP, Way.DATA, first=1), Fault(FaultKind.DROP, Way.CONTROL, first=0, every=2)
    ) as (pair, plan):
        buffers = [bytearray(1) for _ in range(3)]
        receives = [pair.far.receive_data(memoryview(each), tag) for tag, each in enumerate(buffers, 1)]
        sends = [pair.near.send_data(memoryview(b"x"), tag) for tag in (1, 2, 3)]
        assert await settled(*sends, receives[0], receives[2]) == [None] * 5
        assert not receives[1].done()
        assert buffers == [b"x", b"\0", b"x"]
        for payload in (b"0", b"1", b"2", b"3"):
            pair.near.send_control(payload)
        assert [await pair.far.receive_control(LIMIT) for _ in range(2)] == [b"1", b"3"]
        assert plan.injected == {(Way.DATA, FaultKind.DROP): 1, (Way.CONTROL, FaultKind.DROP): 2}


async def test_corrupt_flips_one_bit_of_the_receiver_and_none_of_the_sender() -> None:
    async with sending_with(
        Fault(FaultKind.CORRUPT, Way.DATA, first=1, offset=300), Fault(FaultKind.CORRUPT, Way.CONTROL)
    ) as (pair, plan):
        sent = bytes(1000)
        source = bytearray(sent)
        received = [bytearray(1000) for _ in range(3)]
        for tag, buffer in enumerate(received, 1):
            receive = pair.near.receive_data(memoryview(buffer), tag)
            assert await settled(receive, pair.far.send_data(memoryview(source), tag)) == [None, None]
        assert [each == sent for each in received] == [True, False, True]
        assert received[1][300].bit_count() == 1
        assert sum(received[1]) == received[1][300]
        assert source == sent
        pair.far.send_control(b"abc")
        assert await pair.near.receive_control(LIMIT) != b"abc"
        assert plan.injected.total() == 2


async def test_delay_keeps_the_order_of_control_and_holds_only_its_own_data() -> None:
    async with sending_with(
        Fault(FaultKind.DELAY, Way.CONTROL, first=0, seconds=0.02), Fault(FaultKind.DELAY, Way.DATA, seconds=0.02)
    ) as (pair, _):
        for payload in (b"0", b"1"):
            pair.near.send_control(payload)
        receives = [pair.far.receive_data(memoryview(bytearray(1)), tag) for tag in (1, 2)]
        arrived: list[int] = []
        for tag, receive in enumerate(receives, 1):
            receive.add_done_callback(lambda _, tag=tag: arrived.append(tag))
        sends = [pair.near.send_data(memoryview(b"x"), tag) for tag in (1, 2)]
        assert [await pair.far.receive_control(LIMIT) for _ in range(2)] == [b"0", b"1"]
        assert await settled(*receives, *sends) == [None] * 4
        assert arrived == [2, 1]


async def test_control_that_is_late_is_not_overtaken_when_the_loop_is_late_too() -> None:
    async with sending_with(Fault(FaultKind.DELAY, Way.CONTROL, every=3, seconds=0.005)) as (pair, _):
        payloads = [str(number).encode() for number in range(9)]
        for payload in payloads:
            pair.near.send_control(payload)
            if payload in b"258":
                time.sleep(0.01)  # noqa: ASYNC251  a loop that is busy with something else
        assert [await pair.far.receive_control(LIMIT) for _ in payloads] == payloads


async def test_reset_loses_the_connection_instead_of_the_message() -> None:
    async with sending_with(Fault(FaultKind.RESET, Way.DATA, first=1)) as (pair, _):
        receives = [pair.far.receive_data(memoryview(bytearray(1)), tag) for tag in (1, 2)]
        first = pair.near.send_data(memoryview(b"x"), 1)
        assert await settled(first, receives[0]) == [None, None]
        waiting = asyncio.ensure_future(pair.near.receive_control(LIMIT))
        await asyncio.sleep(0)
        errors = await settled(pair.near.send_data(memoryview(b"y"), 2), receives[1])
        assert all(isinstance(error, ConnectionLost) for error in errors)
        for lost in (waiting, pair.far.receive_control(LIMIT), pair.near.receive_control(LIMIT)):
            with pytest.raises(ConnectionLost):
                await lost
        with pytest.raises(ConnectionLost, match="injected"):
            pair.near.send_control(b"")


async def test_reset_on_control() -> None:
    async with sending_with(Fault(FaultKind.RESET, Way.CONTROL)) as (pair, plan):
        with pytest.raises(ConnectionLost):
            pair.near.send_control(b"x")
        with pytest.raises(ConnectionLost):
            await pair.far.receive_control(LIMIT)
        assert plan.injected == {(Way.CONTROL, FaultKind.RESET): 1}


async def test_stall_stops_one_way_for_a_while() -> None:
    async with sending_with(Fault(FaultKind.STALL, Way.DATA, seconds=1.0)) as (pair, _):
        receives = [pair.far.receive_data(memoryview(bytearray(1)), tag) for tag in (1, 2)]
        sends = [pair.near.send_data(memoryview(b"x"), tag) for tag in (1, 2)]
        pair.near.send_control(b"moves on")
        assert await pair.far.receive_control(LIMIT) == b"moves on"
        assert not any(future.done() for future in (*receives, *sends))
        assert await settled(*receives, *sends) == [None] * 4


async def test_a_stall_for_ever_ends_with_close_and_gives_the_buffers_back() -> None:
    async with sending_with(
        Fault(FaultKind.STALL, Way.DATA, seconds=math.inf), Fault(FaultKind.STALL, Way.CONTROL, seconds=math.inf)
    ) as (pair, _):
        pair.near.send_control(b"never")
        send = pair.near.send_data(memoryview(b"x"), 1)
        receive = pair.near.receive_data(memoryview(bytearray(1)), 1)
        await pair.near.close(1)
        assert all(isinstance(error, ConnectionLost) for error in await settled(send, receive))
        assert pair.near.leaked == 0
        with pytest.raises(ConnectionLost):
            await pair.far.receive_control(LIMIT)
