"""The address of a data way: what was packed is read, and nothing else is."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.errors import ConnectFailed
from kvferry_runtime.transport.data_address import MAGIC, MAX_HOSTS, digest, pack, unpack

HOSTS = st.lists(st.ip_addresses(), max_size=MAX_HOSTS)
ADDRESSES = st.binary(min_size=1, max_size=300)


@given(HOSTS, ADDRESSES)
def test_what_was_packed_is_read(hosts: list, address: bytes) -> None:
    assert unpack(pack(hosts, address), "peer") == (tuple(hosts), address)


def test_more_hosts_than_lanes_are_not_told() -> None:
    hosts = [ip_address(number) for number in range(1 << 24, (1 << 24) + 100)]
    found, address = unpack(pack(hosts, b"a"), "peer")
    assert (found, address) == (tuple(hosts[:MAX_HOSTS]), b"a")


@given(HOSTS, ADDRESSES, st.data())
def test_what_is_damaged_is_refused(hosts: list, address: bytes, data: st.DataObject) -> None:
    packed = bytearray(pack(hosts, address))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ConnectFailed, match="peer"):
        unpack(bytes(packed), "peer")


def signed(body: bytes) -> bytes:
    return MAGIC + digest(body) + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAGIC,
        signed(b""),
        signed(b"\0"),
        signed(b"\0\0"),
        signed(b"\0\1"),
        signed(b"\0\x081.2.3.4"),
        signed(b"\0\x031.2address"),
        signed(b"\0\x04\xff\xff\xff\xffaddress"),
        signed(b"\xff\xff1.2.3.4"),
        signed((8 * 100 - 1).to_bytes(2, "big") + b",".join([b"1.2.3.4"] * 100) + b"address"),
        b"KVFU\x01" + signed(b"\0\0address")[5:],
    ],
)
def test_hostile_ones_are_refused(data: bytes) -> None:
    with pytest.raises(ConnectFailed, match="not a UCX address of this version"):
        unpack(data, "peer")
