"""Two connected transports of each kind, for tests that hold for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kvferry_contract.config import TransportKind
from kvferry_runtime.transport.base import Connection, Transport
from kvferry_runtime.transport.faulty import FaultPlan, FaultyTransport
from kvferry_runtime.transport.memory import MemoryNetwork
from kvferry_runtime.transport.ucx import UcxTransport

KINDS = ("memory", "ucx-tcp", "ucx-auto", "faulty-memory", "faulty-ucx")
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Pair:
    """`near` dialled, `far` was dialled; the data way is open."""

    near: Connection
    far: Connection
    dialling: Transport
    listening: Transport
    address: tuple[str, int]


def transports(kind: str) -> tuple[Transport, Transport]:
    """A dialling and a listening transport that can reach each other."""
    if kind.startswith("faulty-"):
        near, far = transports({"faulty-memory": "memory", "faulty-ucx": "ucx-tcp"}[kind])
        return FaultyTransport(near, FaultPlan()), FaultyTransport(far, FaultPlan())
    if kind == "memory":
        network = MemoryNetwork()
        return network.transport(), network.transport()
    ucx = TransportKind(kind.removeprefix("ucx-"))
    return UcxTransport(ucx), UcxTransport(ucx)


@asynccontextmanager
async def connected(near: Transport, far: Transport, *, data: bool = True) -> AsyncIterator[Pair]:
    """Both ends of one connection; closes both transports at the end."""
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    try:
        listener = await far.listen("127.0.0.1", 0, accepted.put_nowait)
        dialled = await near.connect(*listener.address, SECONDS)
        pair = Pair(dialled, await accepted.get(), near, far, listener.address)
        if data:
            await open_both(pair.near, pair.far)
        yield pair
    finally:
        await near.close()
        await far.close()


async def dial(near: Transport, far: Transport) -> tuple[Connection, Connection]:
    """Both ends of one more connection; the data way is not open."""
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await far.listen("127.0.0.1", 0, accepted.put_nowait)
    dialled = await near.connect(*listener.address, SECONDS)
    taken = await accepted.get()
    await listener.close()
    return dialled, taken


async def open_both(near: Connection, far: Connection) -> None:
    """What two sessions do once both have proved the key."""
    await asyncio.gather(
        near.open_data(far.data_address(), SECONDS),
        far.open_data(near.data_address(), SECONDS),
    )


async def settled(*futures: asyncio.Future[None]) -> list[BaseException | None]:
    """Wait for all; what each of them failed with."""
    _, waiting = await asyncio.wait(futures, timeout=SECONDS)
    assert not waiting, f"{len(waiting)} of {len(futures)} buffers did not come back"
    return [future.exception() for future in futures]
