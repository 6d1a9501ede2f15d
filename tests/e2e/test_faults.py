"""Processes are killed and stopped in mid-transfer: never a hang, never a wrong token, and then all works again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PROMPT = [random.Random(7).randrange(100, 49152) for _ in range(1500)]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one process while the KV of a long prompt is on its way."""

    role: str
    container: str
    strike: Callable[[int], Any]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def stop_for_ten_seconds(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(10)
    os.kill(pid, signal.SIGCONT)


FAULTS = {
    "decode's sidecar is killed": Fault("decode", "kvferry-sidecar", kill),
    "prefill's engine is killed": Fault("prefill", "engine", kill),
    "prefill's sidecar is killed": Fault("prefill", "kvferry-sidecar", kill),
    "decode's sidecar stops for 10 s": Fault("decode", "kvferry-sidecar", stop_for_ten_seconds),
    "prefill's sidecar stops for 10 s": Fault("prefill", "kvferry-sidecar", stop_for_ten_seconds),
}


@pytest.fixture(scope="module", params=["Recompute", "Fail"])
def instance(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[str, serving.Serving]]:
    policy = str(request.param)
    name = serving.unique(policy.lower())
    with serving.serving(folder, name, serving.manifest(name, policy=policy)) as running:
        yield policy, running


@pytest.fixture(scope="module")
def expected(aggregated_url: str) -> list[int]:
    return serving.answer_of(aggregated_url, PROMPT)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_a_fault_in_mid_transfer(
    instance: tuple[str, serving.Serving], fault: Fault, expected: list[int]
) -> None:
    policy, running = instance
    (prefill,), (decode,) = running.pods("prefill"), running.pods("decode")
    victim = prefill if fault.role == "prefill" else decode
    async with serving.client() as client:
        await serving.transferred_again(client, running.url, PROMPT, expected)

        async def under_way() -> bool:
            record = await client.get(f"{prefill.sidecar}/v1/transfers")
            ours = (item for item in record["transfers"] if item["tokens"] == len(PROMPT))
            return any(item["state"] == "streaming" and item["chunks"] > 2 for item in ours)

        request = await serving.caught(
            lambda: client.complete(running.url, PROMPT), under_way, "the transfer is under way"
        )
        striking = fault.strike(victim.pids[fault.container])
        background = asyncio.ensure_future(striking) if asyncio.iscoroutine(striking) else None

        status, body = await asyncio.wait_for(request, serving.ANSWER_SECONDS)
        if status == 200:
            assert serving.tokens(body) == expected
        else:
            assert policy == "Fail", body
            assert body["error"]["message"], body
        if policy == "Recompute":
            assert status == 200, body

        for pod in (prefill, decode):
            if pod is victim and fault.container == "engine":
                continue  # its blocks went with it

            async def blocks_are_free(pod: serving.Pod = pod) -> bool:
                blocks = (await client.get(f"{pod.engine}/v1/state"))["blocks"]
                return bool(blocks["free"] == blocks["total"])

            await serving.until(blocks_are_free, serving.REST_SECONDS, f"blocks of {pod.name} are free again")
        if background is not None:
            await background
        await serving.transferred_again(client, running.url, PROMPT, expected)
