"""A listener bears any number of connections, and each that comes to nothing is counted, told and closed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from kvferry_runtime.errors import ConnectionLost, Reason
from kvferry_runtime.transport import doorway
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.transport.doorway import CLOSE_SECONDS, Doorway
from kvferry_runtime.transport.greeting import turn_away
from kvferry_runtime.transport.memory import MemoryConnection, MemoryNetwork
from kvferry_runtime.wire.handshake import Refusal
from kvferry_runtime.wire.messages import Reject, decode

LIMIT = 1024
MOST = 3


class Inn(Doorway):
    """A guest says "in" and is taken over, or "fault", or something else and is refused. Nobody has said it yet.

    One that says "key" has proved it, and is asked once more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.guests: list[Connection] = []
        self.refusals: Counter[Refusal] = Counter()

    async def _welcome(self, connection: Connection) -> None:
        said = await connection.receive_control(LIMIT)
        if said == b"key":
            self._once_proved(connection)()
            said = await connection.receive_control(LIMIT)
        if said == b"fault":
            raise ValueError("a defect")
        if said != b"in":
            raise turn_away(connection, Refusal.KEY, Reason.HANDSHAKE_FAILED, "who are you")
        self.guests.append(connection)

    def _count(self, refusal: Refusal) -> None:
        self.refusals[refusal] += 1


class House:
    """An inn, and those who come. closes: how long each of them was given to close; none is done before `gate`."""

    def __init__(self) -> None:
        self.inn = Inn()
        self.gate = asyncio.Event()
        self.closes: list[float] = []
        self._network = MemoryNetwork()
        self._host = ""

    async def open(self) -> None:
        await self._network.transport().listen("inn", 1, self._came)

    async def knock(self, host: str = "10.0.0.9") -> Connection:
        self._host = host
        return await self._network.transport().connect("inn", 1, 1)

    async def arrival(self, host: str = "10.0.0.9") -> Connection:
        connection = await self.knock(host)
        await settle()
        return connection

    def _came(self, connection: Connection) -> None:
        assert isinstance(connection, MemoryConnection)
        connection._peer = f"{self._host}:1234"
        close = connection.close

        async def slow(timeout: float) -> None:
            self.closes.append(timeout)
            await close(timeout)
            if timeout:
                await self.gate.wait()

        connection.close = slow  # type: ignore[method-assign]
        self.inn.on_connection(connection)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def heard(connection: Connection) -> str:
    """Why it was turned away; its connection is closed then."""
    message = decode(await connection.receive_control(LIMIT))
    assert isinstance(message, Reject)
    with pytest.raises(ConnectionLost):
        await connection.receive_control(LIMIT)
    return message.message


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr(doorway, "MAX_UNAUTHENTICATED", MOST)
    made = House()
    await made.open()
    yield made
    made.gate.set()
    await made.inn.close()


async def test_more_than_the_limit_are_turned_away_until_somebody_is_through(house: House) -> None:
    known = [await house.arrival() for _ in range(MOST)]
    for each in known:
        each.send_control(b"key")
    await settle()
    assert await heard(await house.arrival()) == f"{MOST} connections are in the handshake already"
    assert house.inn.refusals == {Refusal.CAPACITY: 1}
    known[0].send_control(b"in")
    await settle()
    late = await house.arrival()
    late.send_control(b"in")
    await settle()
    assert len(house.inn.guests) == 2
    assert house.closes == [CLOSE_SECONDS]


async def test_silence_makes_room_and_who_has_proved_the_key_keeps_its_place(house: House) -> None:
    known, *silent = [await house.arrival() for _ in range(MOST)]
    known.send_control(b"key")
    await settle()
    for each in silent:
        guest = await house.arrival()
        assert await heard(each) == f"{MOST} connections are in the handshake already"
        guest.send_control(b"in")
        await settle()
        await house.arrival()
    known.send_control(b"in")
    await settle()
    assert len(house.inn.guests) == MOST
    assert house.inn.refusals == {Refusal.CAPACITY: MOST - 1}
    assert house.closes == [CLOSE_SECONDS] * (MOST - 1)


async def test_a_host_that_holds_most_places_makes_room_for_others(house: House) -> None:
    neighbour = await house.arrival("10.0.0.1")
    crowd = [await house.arrival("10.0.0.2") for _ in range(3 * MOST)]
    for each in crowd[: -MOST + 1]:
        await heard(each)
    neighbour.send_control(b"in")
    await settle()
    assert len(house.inn.guests) == 1


async def test_closing_ends_also_what_has_just_made_room(house: House) -> None:
    house.gate.set()
    silent = [await house.arrival() for _ in range(MOST)]
    late = await house.knock()
    async with asyncio.timeout(30):
        await house.inn.close()
        for each in (*silent, late):
            with pytest.raises(ConnectionLost):
                while True:
                    await each.receive_control(LIMIT)
    assert len(house.closes) == MOST + 1


async def test_who_is_slow_to_leave_keeps_nobody_out_and_a_flood_is_cut_off(house: House) -> None:
    for _ in range(MOST + 2):
        stranger = await house.arrival()
        stranger.send_control(b"a word")
        assert await heard(stranger) == "who are you"
    assert house.inn.refusals == {Refusal.KEY: MOST + 2}
    assert house.closes == [CLOSE_SECONDS] * MOST + [0.0] * 2
    guest = await house.arrival()
    guest.send_control(b"in")
    await settle()
    assert len(house.inn.guests) == 1


async def test_closing_ends_what_is_under_way_and_leaves_guests_alone(house: House) -> None:
    guest, silent = await house.arrival(), await house.arrival()
    guest.send_control(b"in")
    await settle()
    house.gate.set()
    async with asyncio.timeout(30):
        await house.inn.close()
        with pytest.raises(ConnectionLost):
            await silent.receive_control(LIMIT)
    assert len(house.closes) == 1
    house.inn.guests[0].send_control(b"good evening")
    assert await guest.receive_control(LIMIT) == b"good evening"
    assert not house.inn.refusals


async def test_who_came_just_before_and_after_closing_is_not_left_at_the_door(house: House) -> None:
    house.gate.set()
    early = asyncio.ensure_future(house.knock())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await house.inn.close()
        for connection in (await early, await house.knock()):
            with pytest.raises(ConnectionLost):
                await connection.receive_control(LIMIT)
    assert len(house.closes) == 2 and not house.inn.guests


async def test_a_defect_in_a_handshake_closes_its_connection_only(house: House) -> None:
    # what is not handled is the event loop's to report
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    bad = await house.arrival()
    bad.send_control(b"fault")
    with pytest.raises(ConnectionLost):
        await bad.receive_control(LIMIT)
    good = await house.arrival()
    good.send_control(b"in")
    await settle()
    assert len(house.inn.guests) == 1
