"""Liveness turns red when the operator does not work any more, and says why."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from kvferry_operator.errors import InputError
from kvferry_operator.health import STUCK_SECONDS, Health, listening
from kvferry_operator.kube import kinds
from kvferry_operator.metrics import Metrics

NOW = 10_000.0


def health(turned: float = NOW, heard: float = NOW, deaf: tuple[kinds.Kind, ...] = ()) -> Health:
    found = Health(resync_seconds=100.0, clock=lambda: NOW)
    found.acting(cast(Any, SimpleNamespace(turned=turned)), cast(Any, SimpleNamespace(heard=heard, deaf=deaf)))
    return found


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (health(), ()),
        (health(turned=NOW - STUCK_SECONDS), ()),
        (health(turned=NOW - STUCK_SECONDS - 1), ("the queue's loop has not turned for 31 s",)),
        (health(heard=NOW - 329), ()),
        (health(heard=NOW - 331), ("no list came for 331 s",)),
        (health(deaf=(kinds.POD,)), ("the watches of pods do not tell what lists show",)),
    ],
)
def test_what_makes_it_sick(state: Health, said: tuple[str, ...]) -> None:
    assert state.sick() == said


async def test_probes_are_answered() -> None:
    state, metrics = Health(resync_seconds=100.0), Metrics()
    async with listening(0, state, metrics) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def ask(path: str) -> tuple[int, str]:
            async with session.get(path) as answer:
                return answer.status, await answer.text()

        assert await ask("/healthz") == (200, "ok\n")
        state.waiting("the CRD")
        assert await ask("/readyz") == (503, "waits for the CRD\n")
        state.standing_by()
        assert await ask("/readyz") == (200, "ok\n")
        state.remark = "the CRD is old"
        assert await ask("/readyz") == (200, "the CRD is old\n")
        status, text = await ask("/metrics")
        assert status == 200 and "kvferry_operator_build_info" in text
        with pytest.raises(InputError, match=f"cannot listen on port {port}: .*--http-port"):
            async with listening(port, state, metrics):
                pass


async def test_a_sick_operator_answers_503_with_the_reason() -> None:
    async with (
        listening(0, health(heard=0.0), Metrics()) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        session.get("/healthz") as answer,
    ):
        assert (answer.status, await answer.text()) == (503, "no list came for 10000 s\n")


async def test_who_asks_nothing_holds_no_connection_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry_operator.health.IDLE_SECONDS", 0.1)
    async with asyncio.timeout(30), listening(0, health(), Metrics()) as port:
        for said in (b"", b"GET /heal"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            assert await reader.read() == b""
            writer.close()
