"""What `kvferry local up` says while its pods start, where there is no terminal to draw a table on."""

from __future__ import annotations

import asyncio
import io
from typing import cast

import pytest

from kvferry_operator.local import view
from kvferry_operator.local.record import ContainerRecord, Phase, PodRecord, Record
from kvferry_operator.local.supervisor import Supervisor


class Starting:
    """A supervisor with one pod more ready each time that somebody looks."""

    def __init__(self, pods: int) -> None:
        self._pods = pods
        self._looks = -1

    @property
    def record(self) -> Record:
        self._looks += 1
        return Record("default", "m", 1, "", "/logs", tuple(self._pod(number) for number in range(self._pods)))

    def _pod(self, number: int) -> PodRecord:
        engine = ContainerRecord("engine", Phase.RUNNING, number < self._looks, 0, 1, "")
        return PodRecord(f"m-{number}", "decode", "127.64.0.1", (engine,))


async def test_progress_is_told_until_all_pods_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_PROGRESS_SECONDS", 0.0)
    output = io.StringIO()
    async with asyncio.timeout(60):
        await view.View(output).run(cast(Supervisor, Starting(2)))
    assert output.getvalue().splitlines() == [
        "0 of 2 pods are ready, the engines load the model",
        "1 of 2 pods are ready, the engines load the model",
    ]
