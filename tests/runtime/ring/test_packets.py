"""Packets of the ring's socket: what goes in comes out, and nothing but a `RingError` comes of anything else."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.errors import RingError
from kvferry_runtime.ring import packets
from kvferry_runtime.ring.messages import (
    MAX_BATCH,
    MAX_PACKET_BYTES,
    Arrived,
    Consumed,
    Fill,
    Filled,
    FromAgent,
    FromSidecar,
    Offer,
    RingMessage,
)

IDS = st.text("0123456789abcdef", min_size=32, max_size=32)
SMALL = st.integers(0, 1000)
FROM_AGENT = st.one_of(
    st.builds(Offer, IDS, SMALL, st.integers(1, 1024), SMALL, SMALL, st.just("none"), st.booleans(), SMALL),
    st.builds(Filled, IDS, SMALL, SMALL, SMALL, SMALL, st.integers(0, 2**64 - 1)),
    st.builds(Consumed, IDS, SMALL, SMALL, st.booleans()),
)
FROM_SIDECAR = st.one_of(st.builds(Fill, IDS, SMALL, SMALL, SMALL), st.builds(Arrived, IDS, SMALL))


def either(packet: bytes) -> list[FromAgent | FromSidecar]:
    """The messages that the two readers find in it."""
    found: list[FromAgent | FromSidecar] = []
    for decode in (packets.decode_from_agent, packets.decode_from_sidecar):
        try:
            found += decode(packet)
        except RingError:
            continue
    return found


@given(FROM_AGENT)
def test_what_an_agent_says_comes_out_at_the_sidecar_alone(message: FromAgent) -> None:
    assert either(packets.encode(message)) == [message]


@given(FROM_SIDECAR)
def test_what_a_sidecar_says_comes_out_at_the_agent_alone(message: FromSidecar) -> None:
    assert either(packets.encode(message)) == [message]


@given(st.lists(FROM_AGENT, min_size=1, max_size=MAX_BATCH))
def test_messages_that_share_a_packet_come_out_in_order(messages: list[FromAgent]) -> None:
    assert packets.decode_from_agent(packets.encode(*messages)) == messages


@pytest.mark.parametrize("count", [0, MAX_BATCH + 1, 1000])
def test_a_packet_of_nothing_or_of_too_many_is_refused(count: int) -> None:
    """Case 47."""
    assert either(packets.packet_of([packets.encode_message(Arrived("0" * 32, 1))] * count)) == []


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(packet: bytes) -> None:
    assert either(packet) == []


@given(st.one_of(FROM_AGENT, FROM_SIDECAR), st.data())
def test_a_packet_cut_short_is_refused(message: RingMessage, data: st.DataObject) -> None:
    packet = packets.encode(message)
    assert either(packet[: data.draw(st.integers(0, len(packet) - 1))]) == []


@pytest.mark.parametrize("packet", [bytes(MAX_PACKET_BYTES + 1), b"\xdd\x7f\xff\xff\xff", pickle.dumps({"t": "Offer"})])
def test_too_much_or_something_else_is_refused(packet: bytes) -> None:
    """Case 47."""
    assert either(packet) == []
