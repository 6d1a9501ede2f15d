"""Which buffers may be lent, and that a loan ends only with the transport's word."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from kvferry_runtime.errors import ConnectionLost, LayoutError
from kvferry_runtime.transport.buffers import BufferFuture, checked_tag, lent_view

BASE = np.arange(4 * 16 * 64, dtype=np.float16).reshape(4, 16, 64)


@pytest.mark.parametrize(
    "array",
    [BASE[:, ::2, :], BASE.transpose(2, 0, 1), np.asfortranarray(BASE), BASE[:, :, ::-1], BASE[:, 2:6, :]],
    ids=["strided", "transposed", "fortran", "reversed", "inner slice"],
)
def test_views_whose_bytes_are_not_their_values_in_order_are_refused(array: np.ndarray) -> None:
    """Case 24."""
    with pytest.raises(LayoutError, match="C-contiguous"):
        lent_view(memoryview(array), writable=False)


@pytest.mark.parametrize("array", [BASE, BASE[1], BASE[2:, :, :], BASE[:, :1, :][0]])
def test_contiguous_views_are_the_same_memory(array: np.ndarray) -> None:
    view = lent_view(memoryview(array), writable=True)
    assert view.tobytes() == array.tobytes()
    assert view.format == "B"
    copy = np.frombuffer(view, np.uint8)
    assert np.shares_memory(copy, array)


@pytest.mark.parametrize("shape", [(0,), (0, 8, 64), (4, 0, 64)])
def test_empty_ones_are_fine(shape: tuple[int, ...]) -> None:
    """Case 24."""
    assert lent_view(memoryview(np.empty(shape, np.float16)), writable=True).nbytes == 0


def test_nothing_is_received_into_constants() -> None:
    with pytest.raises(LayoutError, match="read-only"):
        lent_view(memoryview(b"abc"), writable=True)


@pytest.mark.parametrize("tag", [0, -1, 1 << 64])
def test_tags_that_are_not_ours_to_use(tag: int) -> None:
    with pytest.raises(ValueError, match="tag"):
        checked_tag(tag)


async def test_a_loan_outlives_those_who_wait_for_it() -> None:
    future = BufferFuture(loop=asyncio.get_running_loop())

    async def wait() -> None:
        await future

    first, second = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await future
    assert not future.cancel()
    assert not future.done()
    future.give_back()
    future.give_back(ConnectionLost("too late to fail"))
    await second
    await future


async def test_a_failed_loan_raises_for_everybody_who_waits() -> None:
    future = BufferFuture(loop=asyncio.get_running_loop())
    waiting = asyncio.ensure_future(_raises(future))
    await asyncio.sleep(0)
    future.give_back(ConnectionLost("gone"))
    await waiting
    await _raises(future)


@pytest.mark.parametrize("error", [None, ConnectionLost("gone")])
async def test_the_owner_is_told_once_and_at_once_that_a_buffer_is_back(error: ConnectionLost | None) -> None:
    future, told = BufferFuture(loop=asyncio.get_running_loop()), []
    future.when_back(told.append)
    assert told == []
    future.give_back(error)
    future.give_back()
    assert told == [error]


async def test_an_owner_that_asks_late_is_told_but_not_from_within_its_own_call() -> None:
    future, told = BufferFuture(loop=asyncio.get_running_loop()), []
    future.give_back()
    future.when_back(told.append)
    assert told == []
    await asyncio.sleep(0)
    assert told == [None]


async def _raises(future: BufferFuture) -> None:
    with pytest.raises(ConnectionLost, match="gone"):
        await future
