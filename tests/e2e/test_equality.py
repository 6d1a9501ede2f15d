"""Under load, every answer equals that of one engine that serves alone, and everything that was taken comes back."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

REQUESTS, AT_ONCE, USUAL, LONGEST = 200, 16, 1000, 2000
VOCABULARY = 49152
SEED = 20261129
TIMEOUT_SECONDS = 1800
"""Sixteen long prompts queue for one prefill on a small machine; that is no failure of a transfer."""


def prompts() -> list[list[int]]:
    """Lengths from 1 to `LONGEST`, both ends included, most up to `USUAL`, short ones more often, in random order."""
    chance = random.Random(SEED)
    lengths = [1, 2, 15, 16, 17, 255, 256, 257, 1024, 1500, LONGEST]
    lengths += [round(USUAL ** chance.random()) for _ in range(REQUESTS - len(lengths))]
    chance.shuffle(lengths)
    return [[chance.randrange(100, VOCABULARY) for _ in range(length)] for length in lengths]


async def test_two_hundred_requests_sixteen_at_a_time(folder: Path, aggregated_url: str) -> None:
    name = serving.unique("equal")
    text = serving.manifest(name, decode=2, timeout_seconds=TIMEOUT_SECONDS)
    with serving.serving(folder, name, text) as instance:
        async with serving.client() as client:
            free = await counts(client, instance)
            bodies = await answers(client, instance.url)
            expected = await answers(client, aggregated_url)
            modes = [body["kvferry"]["mode"] for body in bodies]
            assert modes == ["transferred"] * REQUESTS, {mode: modes.count(mode) for mode in modes}
            for ours, theirs in zip(bodies, expected, strict=True):
                assert serving.tokens(ours) == serving.tokens(theirs)
                assert ours["choices"][0]["text"] == theirs["choices"][0]["text"]
                assert ours["usage"]["completion_tokens"] == len(serving.tokens(ours))
            await both_ends_agree(client, instance, bodies)

            async def given_back() -> bool:
                return await counts(client, instance) == free

            await serving.until(given_back, serving.REST_SECONDS, f"free slots and blocks as at the start: {free}")


async def answers(client: serving.Client, url: str) -> list[dict[str, Any]]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(prompt: list[int]) -> dict[str, Any]:
        async with slots:
            status, body = await client.complete(url, prompt)
            assert status == 200, body
            return body

    return await asyncio.gather(*(one(prompt) for prompt in prompts()))


async def both_ends_agree(client: serving.Client, instance: serving.Serving, bodies: list[dict[str, Any]]) -> None:
    """Bytes, chunks and digest that prefill sent are those that decode put in place."""
    (prefill,) = instance.pods("prefill")
    for body in bodies:
        transfer, pod = body["kvferry"]["transfer"]["id"], body["kvferry"]["decode_pod"]
        decode = next(item for item in instance.pods("decode") if item.name == pod)
        sent = await serving.transfer(client, f"{prefill.sidecar}/v1/transfers/{transfer}")
        received = await serving.transfer(client, f"{decode.sidecar}/v1/transfers/{transfer}")
        for field in ("state", "chunks", "bytes_raw", "bytes_wire", "digest"):
            assert sent[field] == received[field], (field, sent, received)
        assert sent["state"] == "committed"


async def counts(client: serving.Client, instance: serving.Serving) -> dict[str, Any]:
    """What is free in each pod: blocks of the engine, slots of the ring that hold no chunk."""
    found: dict[str, Any] = {}
    for pod in [*instance.pods("prefill"), *instance.pods("decode")]:
        engine = await client.get(f"{pod.engine}/v1/state")
        sidecar = await client.get(f"{pod.sidecar}/v1/state")
        ring = sidecar["ring"]
        found[pod.name] = {
            "blocks": engine["blocks"]["free"],
            "slots": ring["free"] + ring["posted"],
            "open": sidecar["transfers"],
        }
    return found
