"""What the in-memory transport adds to the contract: networks, ports, resets."""

from __future__ import annotations

import pytest

from kvferry_runtime.errors import ConnectFailed, ConnectionLost, TransportUnavailable
from kvferry_runtime.transport.memory import LANE, MAX_QUEUED_PAYLOADS, MemoryConnection, MemoryNetwork
from transport_pairs import connected, settled


async def test_networks_do_not_see_each_other() -> None:
    one, other = MemoryNetwork(), MemoryNetwork()
    listener = await one.transport().listen("p", 7400, lambda connection: None)
    assert listener.address == ("p", 7400)
    with pytest.raises(ConnectFailed, match="p:7400"):
        await other.transport().connect("p", 7400, 1)


async def test_an_address_is_taken_until_it_is_closed() -> None:
    network = MemoryNetwork()
    first = await network.transport().listen("p", 7400, lambda connection: None)
    with pytest.raises(TransportUnavailable, match="p:7400"):
        await network.transport().listen("p", 7400, lambda connection: None)
    await first.close()
    await network.transport().listen("p", 7400, lambda connection: None)


async def test_a_reset_hits_both_ends_at_once_and_takes_what_was_under_way() -> None:
    network = MemoryNetwork()
    async with connected(network.transport(), network.transport()) as pair:
        assert pair.near.lanes() == (LANE,)
        pair.near.send_control(b"never read")
        futures = [
            pair.far.receive_data(memoryview(bytearray(1)), 1),
            pair.near.send_data(memoryview(b"a"), 2),
        ]
        assert isinstance(pair.near, MemoryConnection)
        pair.near.reset("killed")
        assert all(isinstance(error, ConnectionLost) for error in await settled(*futures))
        for end in (pair.near, pair.far):
            with pytest.raises(ConnectionLost, match="killed"):
                await end.receive_control(100)
            with pytest.raises(ConnectionLost):
                end.send_control(b"")


async def test_a_peer_that_does_not_read_fills_a_bounded_queue() -> None:
    network = MemoryNetwork()
    async with connected(network.transport(), network.transport()) as pair:
        with pytest.raises(ConnectionLost, match="does not read"):
            for _ in range(MAX_QUEUED_PAYLOADS + 1):
                pair.near.send_control(b"x")
