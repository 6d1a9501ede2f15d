"""Passes are run for keys: bounded, alone for each key, again after failures, stopped cleanly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kvferry_operator.errors import Throttled, Unreachable
from kvferry_operator.queue import Queue, Work
from kvferry_operator.schedule import Key, Schedule

A, B = ("models", "a"), ("models", "b")


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def running(queue: Queue, work: Work) -> AsyncIterator[None]:
    task = asyncio.create_task(queue.run(work))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def counting(passes: list[Key], outcome: Callable[[int], float | None] = lambda _: None) -> Work:
    async def work(key: Key) -> float | None:
        passes.append(key)
        return outcome(len(passes))

    return work


async def test_marked_keys_get_a_pass() -> None:
    passes: list[Key] = []
    queue = Queue(workers=2)
    async with running(queue, counting(passes)):
        queue.mark(A)
        queue.mark(B)
        await settle()
    assert sorted(passes) == [A, B]


async def test_no_more_passes_at_once_than_workers() -> None:
    inside, most, gate = 0, 0, asyncio.Event()

    async def work(key: Key) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await gate.wait()
        inside -= 1

    queue = Queue(workers=3)
    async with running(queue, work):
        for index in range(10):
            queue.mark(("models", str(index)))
        await settle()
        assert (inside, len(queue)) == (3, 7)
        gate.set()
        await settle()
    assert (inside, most, len(queue)) == (0, 3, 0)


@pytest.mark.parametrize("error", [Unreachable("no answer"), Throttled("later", 7.0), RuntimeError("defect")])
async def test_a_failed_pass_is_repeated_and_others_go_on(error: Exception) -> None:
    clock, passes = Clock(), list[Key]()

    def outcome(count: int) -> None:
        if count == 1:
            raise error

    queue = Queue(workers=2, clock=clock, schedule=Schedule(spread=lambda: 1.0))
    async with running(queue, counting(passes, outcome)):
        queue.mark(A)
        await settle()
        queue.mark(B)
        await settle()
        assert passes == [A, B]
        clock.now = 7.0
        queue.mark(B, after=100.0)
        await settle()
    assert passes == [A, B, A]


async def test_a_stop_ends_the_passes_that_run() -> None:
    ended = []

    async def work(key: Key) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(key)

    queue = Queue(workers=2)
    async with running(queue, work):
        queue.mark(A)
        await settle()
    assert ended == [A]
