"""What every transport promises (`transport.base`), over all of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from kvferry_runtime.errors import ConnectFailed, ConnectionLost, FrameError, LayoutError, TransportError
from kvferry_runtime.wire.frames import MAX_CONTROL_BYTES
from transport_pairs import KINDS, SECONDS, Pair, connected, dial, open_both, settled, transports

LIMIT = MAX_CONTROL_BYTES
SIZES = (0, 1, 64 << 10, 1 << 20, 8 << 20)


@pytest.fixture(params=KINDS)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with connected(*transports(request.param)) as made:
        yield made


def bytes_of(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


async def test_control_keeps_order_and_content_both_ways(pair: Pair) -> None:
    payloads = [b"", b"x", *(bytes_of(size, size) for size in (1, 1000, 70_000, MAX_CONTROL_BYTES)), b"last"]
    for payload in payloads:
        pair.near.send_control(payload)
        pair.far.send_control(payload[::-1])
    for payload in payloads:
        assert await pair.far.receive_control(LIMIT) == payload
        assert await pair.near.receive_control(LIMIT) == payload[::-1]


async def test_a_cancelled_receive_of_control_loses_nothing(pair: Pair) -> None:
    waiting = asyncio.ensure_future(pair.far.receive_control(LIMIT))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    pair.near.send_control(b"kept")
    assert await pair.far.receive_control(LIMIT) == b"kept"


async def test_control_above_the_limit_is_refused_on_either_side(pair: Pair) -> None:
    with pytest.raises(FrameError, match="at most"):
        pair.near.send_control(bytes(MAX_CONTROL_BYTES + 1))
    pair.near.send_control(bytes(101))
    with pytest.raises(FrameError, match="100"):
        await pair.far.receive_control(100)


@pytest.mark.parametrize("posted_first", [True, False])
@pytest.mark.parametrize("size", SIZES)
async def test_data_arrives_whole(pair: Pair, size: int, posted_first: bool) -> None:
    sent, received = bytes_of(size), bytearray(size)
    if posted_first:
        receive = pair.far.receive_data(memoryview(received), 7)
        send = pair.near.send_data(memoryview(sent), 7)
    else:
        send = pair.near.send_data(memoryview(sent), 7)
        await asyncio.sleep(0.001)
        receive = pair.far.receive_data(memoryview(received), 7)
    assert await settled(send, receive) == [None, None]
    assert received == sent


async def test_many_messages_meet_their_tags_both_ways_at_once(pair: Pair) -> None:
    count = 48
    sizes = [random.Random(1).choice((1, 300, 9_000, 200_000)) for _ in range(count)]
    tags = [(session << 32) | number for session in (1, (1 << 32) - 1) for number in range(count // 2)]
    futures, expected = [], []
    for sender, receiver, seed in ((pair.near, pair.far, 1), (pair.far, pair.near, 2)):
        order = list(zip(tags, sizes, strict=True))
        for tag, size in order:
            sent, received = bytes_of(size, seed * tag), bytearray(200_000)
            expected.append((sent, received))
            futures.append(receiver.receive_data(memoryview(received), tag))
        random.Random(seed).shuffle(order)
        for tag, size in order:
            futures.append(sender.send_data(memoryview(bytes_of(size, seed * tag)), tag))
    assert set(await settled(*futures)) == {None}
    for sent, received in expected:
        assert received == sent + bytes(len(received) - len(sent))


@pytest.mark.parametrize("size", [100, 2 << 20])
async def test_a_message_longer_than_the_buffer_fails_and_writes_nothing_behind_it(pair: Pair, size: int) -> None:
    memory = bytearray(b"z" * size)
    receive = pair.far.receive_data(memoryview(memory)[: size - 50], 9)
    send = pair.near.send_data(memoryview(b"a" * size), 9)
    failure, _ = await settled(receive, send)
    assert isinstance(failure, TransportError)
    assert not isinstance(failure, ConnectionLost)
    assert memory[size - 50 :] == b"z" * 50
    # The connection is as good as before.
    assert await settled(pair.far.receive_data(memoryview(memory), 10), pair.near.send_data(memoryview(b"b"), 10)) == [
        None,
        None,
    ]
    assert memory[:1] == b"b"


async def test_close_gives_every_buffer_back(pair: Pair) -> None:
    buffers = [bytearray(8 << 20) for _ in range(4)]
    source = bytes(8 << 20)
    receives = [pair.far.receive_data(memoryview(each), tag) for tag, each in enumerate(buffers, 1)]
    sends = [pair.near.send_data(memoryview(source), tag) for tag in (1, 2, 99)]
    await asyncio.sleep(0)
    await pair.far.close(SECONDS)
    assert all(future.done() for future in receives)
    assert pair.far.leaked == 0
    held = [bytes(each) for each in buffers]
    await pair.near.close(SECONDS)
    assert all(future.done() for future in sends)
    assert pair.near.leaked == 0
    assert all(isinstance(error, ConnectionLost) for error in await settled(*receives[2:]))
    assert held == [bytes(each) for each in buffers], "something was written after the buffer came back"


async def test_the_peer_hears_of_a_close_at_once_and_gets_what_was_said_before(pair: Pair) -> None:
    pair.near.send_control(b"last words")
    closing = asyncio.ensure_future(pair.near.close(SECONDS))
    assert await pair.far.receive_control(LIMIT) == b"last words"
    with pytest.raises(ConnectionLost):
        await pair.far.receive_control(LIMIT)
    with pytest.raises(ConnectionLost):
        pair.far.send_control(b"too late")
    await closing


async def test_nothing_works_after_close_and_nothing_hangs(pair: Pair) -> None:
    waiting = asyncio.ensure_future(pair.near.receive_control(LIMIT))
    await asyncio.sleep(0)
    await pair.near.close(SECONDS)
    await pair.near.close(SECONDS)
    with pytest.raises(ConnectionLost):
        await waiting
    with pytest.raises(ConnectionLost):
        pair.near.send_control(b"")
    errors = await settled(
        pair.near.send_data(memoryview(b"a"), 1), pair.near.receive_data(memoryview(bytearray(1)), 1)
    )
    assert all(isinstance(error, ConnectionLost) for error in errors)
    assert pair.near.lanes() == ()


async def test_a_buffer_that_is_not_contiguous_is_refused_before_anything_is_sent(pair: Pair) -> None:
    received = bytearray(4)
    receive = pair.far.receive_data(memoryview(received), 5)
    with pytest.raises(LayoutError, match="C-contiguous"):
        pair.near.send_data(memoryview(b"abcdefgh")[::2], 5)
    with pytest.raises(LayoutError, match="C-contiguous"):
        pair.near.receive_data(memoryview(bytearray(8))[::2], 6)
    with pytest.raises(LayoutError, match="read-only"):
        pair.near.receive_data(memoryview(b"constant"), 6)
    assert not receive.done()
    assert await settled(pair.near.send_data(memoryview(b"aceg"), 5), receive) == [None, None]
    assert received == b"aceg"


async def test_cancelling_who_waits_does_not_give_the_buffer_back(pair: Pair) -> None:
    received = bytearray(3)
    future = pair.far.receive_data(memoryview(received), 4)

    async def wait() -> None:
        await future

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert not future.cancel()
    assert not future.done()
    assert await settled(pair.near.send_data(memoryview(b"yes"), 4), future) == [None, None]
    await future
    assert received == b"yes"


async def test_lanes_are_those_of_the_endpoint(pair: Pair) -> None:
    assert pair.near.lanes() == pair.far.lanes() != ()


@pytest.mark.parametrize("kind", KINDS)
async def test_data_needs_open_data_on_both_sides(kind: str) -> None:
    async with connected(*transports(kind), data=False) as pair:
        assert pair.near.lanes() == ()
        errors = await settled(
            pair.near.send_data(memoryview(b"a"), 1), pair.near.receive_data(memoryview(bytearray(1)), 1)
        )
        assert all(isinstance(error, ConnectionLost) for error in errors)
        with pytest.raises(ConnectFailed, match="did not answer"):
            await pair.near.open_data(pair.far.data_address(), 0.05)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["empty", "noise", "cut", "flipped"])
async def test_a_damaged_data_address_is_refused(kind: str, damage: str) -> None:
    async with connected(*transports(kind), data=False) as pair:
        good = pair.far.data_address()
        address = {
            "empty": b"",
            "noise": bytes_of(200),
            "cut": good[:-3],
            "flipped": good[:-1] + bytes([good[-1] ^ 1]),
        }[damage]
        with pytest.raises(ConnectFailed):
            await pair.near.open_data(address, SECONDS)
        await open_both(pair.near, pair.far)


@pytest.mark.parametrize("kind", KINDS)
async def test_two_peers_may_use_the_same_tags(kind: str) -> None:
    near, far = transports(kind)
    async with connected(near, far) as pair:
        second, second_far = await dial(near, far)
        await open_both(second, second_far)
        first_bytes, second_bytes = bytearray(6), bytearray(6)
        futures = [
            pair.far.receive_data(memoryview(first_bytes), 1),
            second_far.receive_data(memoryview(second_bytes), 1),
            second.send_data(memoryview(b"second"), 1),
            pair.near.send_data(memoryview(b"first."), 1),
        ]
        assert set(await settled(*futures)) == {None}
        assert (first_bytes, second_bytes) == (b"first.", b"second")


@pytest.mark.parametrize("kind", KINDS)
async def test_nobody_there(kind: str) -> None:
    near, far = transports(kind)
    listener = await far.listen("127.0.0.1", 0, lambda connection: None)
    await listener.close()
    await listener.close()
    try:
        with pytest.raises(ConnectFailed, match=str(listener.address[1])):
            await near.connect(*listener.address, SECONDS)
    finally:
        await near.close()
        await far.close()
