"""Pipeline stages served by real processes: the same tokens as one engine, and what happens when a stage is killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import serving
from kvferry_contract.transfer import stage_transfer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

STAGES = (2, 2)
CHANCE = random.Random(6)
SHORT = [[CHANCE.randrange(100, 49152) for _ in range(length)] for length in (1, 17, 300)]
LONG = [CHANCE.randrange(100, 49152) for _ in range(1000)]


@pytest.fixture(scope="module")
def staged(folder: Path) -> Iterator[serving.Serving]:
    name = serving.unique("staged")
    with serving.serving(folder, name, serving.manifest(name, stages=STAGES)) as running:
        yield running


async def test_every_answer_is_that_of_one_engine_and_every_stage_moved_its_part(
    staged: serving.Serving, aggregated_url: str
) -> None:
    async with serving.client() as client:
        expected = [await client.complete(aggregated_url, prompt) for prompt in [*SHORT, LONG]]
        answers = await asyncio.gather(*(client.complete(staged.url, prompt) for prompt in [*SHORT, LONG]))
        for (status, ours), (_, theirs) in zip(answers, expected, strict=True):
            assert status == 200 and ours["kvferry"]["mode"] == "transferred", ours
            assert serving.tokens(ours) == serving.tokens(theirs)
            await _every_stage_moved_its_part(client, staged, ours["kvferry"]["transfer"]["id"])


async def _every_stage_moved_its_part(client: serving.Client, staged: serving.Serving, transfer: str) -> None:
    """Both roles are split alike, so stage n of decode loads from stage n of prefill alone."""
    prefill, decode = staged.pods("prefill"), staged.pods("decode")
    for sender, receiver in zip(prefill, decode, strict=True):
        own = stage_transfer(transfer, receiver.stage, STAGES[1])
        sent = await serving.transfer(client, f"{sender.sidecar}/v1/transfers/{own}?direction=send")
        received = await serving.transfer(client, f"{receiver.sidecar}/v1/transfers/{own}?direction=receive")
        assert sent["state"] == received["state"] == "committed"
        for field in ("chunks", "bytes_raw", "bytes_wire", "digest"):
            assert sent[field] == received[field], (field, sent, received)


@pytest.fixture(scope="module")
def expected(aggregated_url: str) -> list[int]:
    return serving.answer_of(aggregated_url, LONG)


@pytest.mark.parametrize("stage", range(STAGES[0]))
async def test_a_prefill_stage_that_is_killed_costs_no_answer_and_its_group_comes_back(
    staged: serving.Serving, stage: int, expected: list[int]
) -> None:
    async with serving.client() as client:
        status, body = await _killed(client, staged, "prefill", stage)
        assert status == 200 and serving.tokens(body) == expected, body
        await _serves_again(client, staged, expected)


@pytest.mark.parametrize("stage", range(STAGES[1]))
async def test_a_decode_stage_that_is_killed_ends_the_request_and_its_group_comes_back(
    staged: serving.Serving, stage: int, expected: list[int]
) -> None:
    """There is no other decode group that could take the request over."""
    async with serving.client() as client:
        status, body = await _killed(client, staged, "decode", stage)
        assert status >= 500 and body["error"]["message"], body
        await _serves_again(client, staged, expected)


async def _killed(client: serving.Client, staged: serving.Serving, role: str, stage: int) -> tuple[int, dict[str, Any]]:
    """What a request gets, of which the engine of this stage is killed while the KV is on its way."""
    [sender] = [pod for pod in staged.pods("prefill") if pod.stage == 0]
    [victim] = [pod for pod in staged.pods(role) if pod.stage == stage]
    before = staged.pods(role)

    async def under_way() -> bool:
        found = await client.get(f"{sender.sidecar}/v1/transfers")
        return any(not item["over"] and item["tokens"] == len(LONG) and item["chunks"] for item in found["transfers"])

    request = await serving.caught(lambda: client.complete(staged.url, LONG), under_way, "the transfer is under way")
    os.kill(victim.pids["engine"], signal.SIGKILL)
    answer = await asyncio.wait_for(request, serving.ANSWER_SECONDS)

    async def is_another_one() -> bool:
        """Every engine of the group is a new one, beside the sidecars that were there."""
        return all(
            new.pids["engine"] not in (0, old.pids["engine"])
            and new.pids["kvferry-sidecar"] == old.pids["kvferry-sidecar"]
            for old, new in zip(before, staged.pods(role), strict=True)
        )

    await serving.until(is_another_one, serving.AGAIN_SECONDS, "all engines of the group were started again")
    return answer


async def _serves_again(client: serving.Client, staged: serving.Serving, expected: list[int]) -> None:
    """By a transfer, after which nothing is held at any stage."""
    await serving.transferred_again(client, staged.url, LONG, expected)

    async def nothing_is_held() -> bool:
        pods = [*staged.pods("prefill"), *staged.pods("decode")]
        states = [await client.get(f"{pod.sidecar}/v1/state") for pod in pods]
        blocks = [(await client.get(f"{pod.engine}/v1/state"))["blocks"] for pod in pods if pod.stage == 0]
        open_now = any(state["transfers"] != {"open_send": 0, "open_receive": 0} for state in states)
        return not open_now and all(block["free"] == block["total"] for block in blocks)

    await serving.until(nothing_is_held, serving.REST_SECONDS, "blocks are free and no transfer is open at any stage")
