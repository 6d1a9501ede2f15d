"""Control messages: fixed schemas, and limits that hold before anything is built."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.errors import FrameError
from kvferry_runtime.wire import messages
from kvferry_runtime.wire.frames import MAX_CONTROL_BYTES
from kvferry_runtime.wire.messages import (
    Abort,
    Ack,
    Commit,
    Credit,
    Hello,
    Nack,
    Ping,
    Seal,
    SealLayer,
    decode,
    encode,
)


def summed(body: bytes) -> bytes:
    """With the checksum that it should have."""
    return body + struct.pack("<I", zlib.crc32(body))


ID = "0123456789abcdef" * 2
COMMIT = Commit(ID, 1, 2, 3, 4, 2**64 - 1)


@pytest.mark.parametrize(
    "message",
    [
        Hello(1, b"b" * 16, b"n" * 16, "ns/pod", {"model": "m"}, ["none"], 1 << 20, 8, True),
        Credit(2**31, [Ack(ID, 0, 5)], [3]),
        COMMIT,
        Seal(ID, 0, 1, 2, 3, 4, [SealLayer(0, 1, 1)], -1),
        Ping(b"b" * 16, 7, -1, 3),
        Abort(ID, 0, "corrupt", "é" * 1024),
    ],
)
def test_round_trip(message: messages.AnyMessage) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "change",
    [
        {"generation": -1},
        {"transfer_id": "x" * 32},
        {"transfer_id": ID.upper()},
        {"sequences": []},
        {"sequences": list(range(4097))},
        {"sequences": [1.5]},
        {"extra": 1},
        {"t": "EVAL"},
    ],
)
def test_a_value_outside_its_limits_is_refused(change: dict[str, object]) -> None:
    good = {"t": "NACK", "transfer_id": ID, "generation": 0, "sequences": [1]}
    assert isinstance(decode(summed(msgspec.msgpack.encode(good))), Nack)
    with pytest.raises(FrameError):
        decode(summed(msgspec.msgpack.encode(good | change)))


@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    for payload in (data, summed(data)):
        with pytest.raises(FrameError):
            decode(payload)


@given(st.integers(0, 8 * len(encode(COMMIT)) - 1))
def test_any_flipped_bit_is_found(bit: int) -> None:
    payload = bytearray(encode(COMMIT))
    payload[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        decode(bytes(payload))


HUGE = struct.pack(">I", 2**31)
CLAIMS = [
    b"\xdd" + HUGE,
    b"\xdf" + HUGE,
    b"\xc6" + HUGE,
    b"\x83\xa1t\xa6CREDIT\xa5limit\x00\xa4acks\xdd" + HUGE,
    b"\x82\xa1t\xa5HELLO\xabfingerprint\xdf" + HUGE,
    b"\x82\xa1t\xa5HELLO\xa5group\xdb" + HUGE,
    b"\x91" * 100_000,
]


@pytest.mark.parametrize("payload", CLAIMS)
def test_a_claim_of_much_content_allocates_nothing(payload: bytes) -> None:
    """Case 47."""
    tracemalloc.start()
    with pytest.raises(FrameError):
        decode(summed(payload))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


class _Marker:
    """Would leave a trace if anybody unpickled it."""

    made = False

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return setattr, (_Marker, "made", True)


def test_pickles_are_just_bytes() -> None:
    """Case 47."""
    with pytest.raises(FrameError):
        decode(summed(pickle.dumps(_Marker())))
    assert not _Marker.made


def test_the_largest_messages_fit_into_a_frame() -> None:
    layers = [SealLayer(index, 2**31, 2**31) for index in range(1024)]
    assert len(encode(Seal(ID, 2**31, 2**31, 2**48, 2**48, 2**64 - 1, layers, 2**31))) < MAX_CONTROL_BYTES
    assert len(encode(Nack(ID, 2**31, [2**31] * 4096))) < MAX_CONTROL_BYTES
    assert len(encode(Credit(2**31, [Ack(ID, 2**31, 2**31)] * 256, [2**31] * 256))) < MAX_CONTROL_BYTES
