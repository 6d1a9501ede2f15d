"""What is sent beside a message fits what was agreed on, and what arrives is what was sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kvferry_runtime.engine.stages import activations
from kvferry_runtime.engine.stages.activations import Buffers
from kvferry_runtime.engine.stages.link_messages import Description
from kvferry_runtime.engine.stages.messages import GroupMessage, PrefillPass, Release
from kvferry_runtime.engine.stages.ring import DTYPES, Array
from kvferry_runtime.errors import LayoutError, ProtocolError

LIMIT = 4096
PASS = PrefillPass(1, 1, 0, 4, None)
SQUARE = np.zeros((8, 8), np.float32)

sendable = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(max_dims=4, max_side=5), elements={"allow_nan": True}
                                if dtype.kind == "f" else None)
)  # fmt: skip


@given(sendable)
def test_an_activation_arrives_bit_for_bit(activation: Array) -> None:
    activations.check_sendable(PASS, activation, LIMIT)
    buffer = memoryview(bytearray(LIMIT))
    buffer[: activation.nbytes] = activation.tobytes()
    found = activations.read(buffer, activations.describe(activation))
    assert (found.shape, found.dtype, found.tobytes()) == (activation.shape, activation.dtype, activation.tobytes())


@given(sendable, st.data())
def test_a_flipped_bit_is_found(activation: Array, data: st.DataObject) -> None:
    changed = bytearray(activation.tobytes())
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ProtocolError, match="arrived damaged: its digest is"):
        activations.read(memoryview(changed), activations.describe(activation))


@pytest.mark.parametrize(
    ("message", "activation", "said"),
    [
        (PASS, None, "PrefillPass without an activation"),
        (Release(1), SQUARE, "Release with an activation"),
        (PASS, SQUARE.astype(np.float64), "dtype float64; float32, float16, uint16 can be sent"),
        (PASS, SQUARE.astype(">f4"), "dtype >f4"),
        (PASS, SQUARE.T[1:], "must be C-contiguous"),
        (PASS, SQUARE[:0], "not empty"),
        (PASS, np.float32(1).reshape(()), "1 to 4 dimensions"),
        (PASS, SQUARE.reshape(1, 1, 1, 8, 8), "1 to 4 dimensions"),
        (PASS, np.zeros(LIMIT // 4 + 1, np.float32), "4100 bytes, the stages agreed on at most 4096"),
    ],
)
def test_what_cannot_be_sent_is_told_to_who_sends_it(message: GroupMessage, activation: Array, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        activations.check_sendable(message, activation, LIMIT)


@pytest.mark.parametrize("shape", [[LIMIT // 4 + 1], [2**31] * 4])
def test_more_than_was_agreed_on_is_refused_before_anything_is_touched(shape: list[int]) -> None:
    with pytest.raises(ProtocolError, match="agreed on at most 4096"):
        activations.size_of(Description(shape, "float32", 0), LIMIT)


@pytest.mark.parametrize("size", [1, 64, 100, 4096])
def test_buffers_do_not_overlap_and_come_back(size: int) -> None:
    buffers = Buffers(3, size)
    taken = [buffers.take() for _ in range(3)]
    assert buffers.take() is None
    for index, buffer in enumerate(taken):
        assert buffer is not None and buffer.nbytes == size
        buffer[:] = bytes([index]) * size
    assert [bytes(buffer or b"") for buffer in taken] == [bytes([index]) * size for index in range(3)]
    for buffer in taken:
        assert buffer is not None
        buffers.give_back(buffer)
    assert buffers.free == 3
