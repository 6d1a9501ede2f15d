"""What stages tell each other survives the way, and nothing else is taken for it."""

from __future__ import annotations

import math
import random
import struct
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.engine.stages import link_messages as wire
from kvferry_runtime.engine.stages import messages as m
from kvferry_runtime.errors import FrameError

numbers = st.integers(0, 2**64 - 1)
counts = st.integers(0, 2**31)
texts = st.text(max_size=40)
samplings = st.builds(
    m.Sampling,
    st.floats(0, allow_nan=False, allow_infinity=False),
    st.floats(0, 1),
    counts,
    st.integers(-(2**63), 2**63 - 1),
)
transfers = st.builds(
    m.Transfer, st.from_regex(r"[0-9a-f]{32}", fullmatch=True), st.sampled_from(["prefill", "decode"]),
    st.lists(texts, max_size=4), counts,
)  # fmt: skip
failures = st.none() | st.builds(m.Failure, texts, texts)
stages = st.integers(0, m.MAX_STAGES - 1)
messages = st.one_of(
    st.builds(m.Place, numbers, counts, counts, st.none() | transfers, st.none() | counts),
    st.builds(m.Begin),
    st.builds(m.CancelLoad, numbers, texts),
    st.builds(m.CancelSend, numbers, texts),
    st.builds(m.Release, numbers),
    st.builds(m.PrefillPass, numbers, numbers, counts, counts, st.none() | samplings),
    st.builds(
        m.DecodePass,
        numbers,
        st.lists(st.builds(m.Row, numbers, counts, counts, counts, samplings), min_size=1, max_size=5),
    ),
    st.builds(m.Ready, stages, counts, st.integers(1, m.MAX_ROWS)),
    st.builds(m.Leaving, stages),
    st.builds(m.Result, numbers, st.lists(counts, max_size=5), texts),
    st.builds(
        m.Loaded, stages, numbers, st.none() | st.builds(m.Load, st.none() | counts, counts, counts, counts,
                                                         st.none() | counts), failures,
    ),
    st.builds(m.Sent, stages, numbers, failures),
)  # fmt: skip
descriptions = st.builds(
    wire.Description,
    st.lists(st.integers(1, 2**31), min_size=1, max_size=4),
    st.sampled_from(["float32", "float16", "uint16"]),
    numbers,
)
link_messages = st.one_of(
    st.builds(wire.Carry, messages, st.none() | descriptions),
    st.builds(wire.Lap, st.sampled_from([1, 2])),
    st.builds(wire.Ping, counts),
    st.builds(wire.Ended, texts),
)


def summed(body: bytes) -> bytes:
    return body + struct.pack("<I", zlib.crc32(body))


@given(link_messages)
def test_what_is_said_is_what_arrives(message: wire.AnyLinkMessage) -> None:
    assert wire.decode(wire.encode(message)) == message


@given(link_messages, st.randoms(use_true_random=False))
def test_a_flipped_bit_is_never_another_message(message: wire.AnyLinkMessage, chance: random.Random) -> None:
    payload = bytearray(wire.encode(message))
    payload[chance.randrange(len(payload))] ^= 1 << chance.randrange(8)
    with pytest.raises(FrameError):
        wire.decode(bytes(payload))


@given(st.binary(max_size=400) | st.binary(max_size=400).map(summed))
def test_noise_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        wire.decode(payload)


SAMPLING = m.Sampling(1.0, 0.5, 0, 7)
BEYOND = {
    "a stage that cannot be": m.Ready(m.MAX_STAGES, 1, 8),
    "no rows": m.DecodePass(1, []),
    "too many rows": m.DecodePass(1, [m.Row(1, 1, 1, 1, SAMPLING)] * (m.MAX_ROWS + 1)),
    "too many tokens": m.Result(1, [0] * (m.MAX_ROWS + 1)),
    "a negative token": m.Result(1, [-1]),
    "a long text": m.Result(1, [], "x" * 1025),
    "a negative request": m.Release(-1),
    "an id that is none": m.Place(1, 1, 1, m.Transfer("0" * 31, "decode", [], 1), None),
    "a role that is none": m.Place(1, 1, 1, m.Transfer("0" * 32, "router", [], 1), None),
    "too many peers": m.Place(1, 1, 1, m.Transfer("0" * 32, "decode", ["a:1"] * 65, 1), None),
    "blocks beyond count": m.Place(1, 2**31 + 1, 1, None, None),
    "a temperature that is no number": m.PrefillPass(1, 1, 0, 1, m.Sampling(math.nan, 1.0, 0, 0)),
    "a negative temperature": m.PrefillPass(1, 1, 0, 1, m.Sampling(-1.0, 1.0, 0, 0)),
    "a top_p above one": m.PrefillPass(1, 1, 0, 1, m.Sampling(1.0, 1.5, 0, 0)),
}


@pytest.mark.parametrize("message", BEYOND.values(), ids=BEYOND.keys())
def test_a_value_outside_its_limits_is_refused(message: m.AnyMessage) -> None:
    with pytest.raises(FrameError, match="not a message between stages"):
        wire.decode(wire.encode(wire.Carry(message, None)))


@pytest.mark.parametrize(
    "body",
    [
        {"t": "CARRY", "message": {"t": "SHUTDOWN"}, "activation": None},
        {"t": "CARRY", "message": {"t": "RELEASE", "request": 1, "more": 1}, "activation": None},
        {"t": "CARRY", "message": {"t": "PING", "number": 1}, "activation": None},
        {"t": "RELEASE", "request": 1},
        {"t": "LAP", "number": 3},
        {"t": "CARRY", "message": {"t": "RELEASE", "request": 1}, "activation": [[], "float32", 1]},
        {"t": "CARRY", "message": {"t": "RELEASE", "request": 1}, "activation": [[0], "float32", 1]},
        {"t": "CARRY", "message": {"t": "RELEASE", "request": 1}, "activation": [[1] * 5, "float32", 1]},
        {"t": "CARRY", "message": {"t": "RELEASE", "request": 1}, "activation": [[1], "object", 1]},
    ],
)
def test_an_unknown_message_or_field_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(FrameError):
        wire.decode(summed(msgspec.msgpack.encode(body)))


def test_a_deeply_nested_body_is_refused() -> None:
    with pytest.raises(FrameError):
        wire.decode(summed(b"\x91" * 100_000))
