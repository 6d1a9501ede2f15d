"""Routers are asked beside the passes, and only another answer means another pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from eventually import eventually_async
from kvferry_contract import pairs
from kvferry_operator.errors import Unreachable
from kvferry_operator.schedule import Key
from kvferry_operator.view.reports import Reports

TINY = ("models", "tiny")
LONG = 3600.0
"""Between two times of asking: no second one comes while a test runs."""
EMPTY = pairs.Report(started_unix=1.0, pairs=(), sidecars=(), routed={})


class Routers:
    """In place of the cluster. answers: by pod."""

    def __init__(self, **answers: Callable[[], bytes]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def ask_pod(self, namespace: str, pod: str, port: int, path: str, limit: int) -> bytes:
        assert (namespace, port, path) == ("models", 8080, "/v1/pairs")
        self.asked.append(pod)
        return self.answers[pod]()


def answering(report: pairs.Report = EMPTY) -> bytes:
    return pairs.dump(report).encode()


def refusing() -> bytes:
    raise Unreachable("nobody listens")


@asynccontextmanager
async def running(routers: Routers) -> AsyncIterator[tuple[Reports, list[Key]]]:
    marked: list[Key] = []
    reports = Reports(cast(Any, routers), marked.append)
    task = asyncio.create_task(reports.run())
    try:
        yield reports, marked
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_first_router_that_answers_counts() -> None:
    routers = Routers(one=refusing, two=answering, three=answering)
    async with running(routers) as (reports, marked):
        reports.follow(TINY, ("one", "two", "three"), LONG)
        assert reports.latest(TINY) is None
        await settle()
        found = reports.latest(TINY)
    assert found is not None and found.report == EMPTY
    assert (routers.asked, marked) == (["one", "two"], [TINY])


async def test_why_nobody_answered_is_said() -> None:
    routers = Routers(one=refusing, two=lambda: b"not JSON")
    async with running(routers) as (reports, marked):
        reports.follow(TINY, ("one", "two"), LONG)
        await settle()
        found = reports.latest(TINY)
    assert found is not None and found.report is None and "nobody listens" in found.why
    assert marked == [TINY]


async def test_the_same_answer_again_marks_nothing_and_another_does() -> None:
    routers = Routers(one=answering, two=lambda: answering(pairs.Report(2.0, (), (), {})))
    async with running(routers) as (reports, marked):
        reports.follow(TINY, ("one",), LONG)
        await settle()
        reports.follow(TINY, ("one",), LONG)
        await settle()
        assert (len(routers.asked), marked) == (1, [TINY]), "not before its time"
        reports.follow(TINY, ("two",), LONG)
        await eventually_async(lambda: asyncio.sleep(0, len(marked) == 2), "the other router was asked, after a rest")
        assert (routers.asked, marked) == (["one", "two"], [TINY, TINY])


async def test_a_model_without_routers_is_forgotten() -> None:
    async with running(Routers(one=answering)) as (reports, marked):
        reports.follow(TINY, ("one",), LONG)
        await settle()
        reports.follow(TINY, (), LONG)
        assert reports.latest(TINY) is None
    assert marked == [TINY]
