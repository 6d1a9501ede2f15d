"""Hostile bytes on every port of real processes: closed or answered, counted, nothing large kept, still serving."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

import tiny_model
from hostile_inputs import Marker, bodies, broken_requests, frames, throw
from kvferry_contract import ports
from kvferry_contract.config import Role
from kvferry_contract.endpoints import Group, dump
from kvferry_runtime.ring.messages import Loaded
from own_addresses import own_address
from scripted_agent import Prompt
from sidecar_pods import same, transfer_id
from sidecar_processes import SidecarProcess, running

pytestmark = pytest.mark.slow

LARGE_BYTES = 64 << 20
"""A process that grows by this for a stranger's bytes has been made to allocate."""
START_SECONDS = 300
AT_ONCE = 8


class Memory:
    """How much a process grows; the kernel's high-water mark is set back at the start."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        (self._folder / "clear_refs").write_text("5")
        self._before = self._peak()

    def growth(self) -> int:
        return self._peak() - self._before

    def _peak(self) -> int:
        (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", (self._folder / "status").read_text())
        return int(kilobytes) << 10


async def get(address: tuple[str, int], path: str) -> tuple[int, str]:
    url = f"http://{address[0]}:{address[1]}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def complete(address: tuple[str, int]) -> str:
    body = {"model": "tiny", "prompt": "a ferry", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    url = f"http://{address[0]}:{address[1]}/v1/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        text: str = (await response.json())["choices"][0]["text"]
        return text


@asynccontextmanager
async def process(address: tuple[str, int], *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`kvferry-runtime` with these arguments, from ready to killed."""
    host, port = address
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvferry_runtime", *arguments, "--host", host, "--port", str(port),
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(START_SECONDS):
            while True:
                assert started.returncode is None
                try:
                    if (await get(address, "/readyz"))[0] == 200:
                        break
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def throw_all(address: tuple[str, int], inputs: Iterable[bytes], *, end: bool = True) -> list[bytes]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(data: bytes) -> bytes:
        async with slots:
            return await throw(address, data, end=end)

    return await asyncio.gather(*map(one, inputs))


def statuses(answers: Iterable[bytes]) -> list[int]:
    """Of those connections that were answered at all."""
    return [int(answer.split(maxsplit=2)[1]) for answer in answers if answer]


async def test_the_ports_of_a_sidecar(tmp_path: Path) -> None:
    """Case 47: for peers and for HTTP."""
    prefill, decode = (
        SidecarProcess(tmp_path / role.value, own_address(20 + number), role, chunk_bytes=1 << 16, buffer_bytes=1 << 21)
        for number, role in enumerate((Role.PREFILL, Role.DECODE), 1)
    )
    marker = Marker(tmp_path / "unpickled")
    async with running(prefill, decode):
        sender, receiver = await prefill.agent(), await decode.agent()
        memory = Memory(prefill.process.pid)
        inputs = frames(marker)
        await throw_all((prefill.host, ports.SIDECAR_PEER), inputs)
        http = (prefill.host, ports.SIDECAR_HTTP)
        answered = await throw_all(http, broken_requests(marker))
        answered += await throw_all(http, bodies(marker), end=False)
        assert all(400 <= status < 500 for status in statuses(answered)), statuses(answered)
        text = await prefill.get("/metrics")
        refused = re.findall(r"^kvferry_rejected_connections_total\{.*\} (\S+)$", text, re.MULTILINE)
        assert sum(map(float, refused)) == len(inputs)
        assert memory.growth() < LARGE_BYTES
        assert prefill.process.returncode is None
        assert not marker.path.exists()
        prompt = Prompt(1000, range(4))
        sender.send(transfer_id(1), prompt)
        receiver.fetch(transfer_id(1), [prefill.peer], 1000)
        assert isinstance(await receiver.end(transfer_id(1)), Loaded)
        assert same(receiver, transfer_id(1), prompt)
        sender.close()
        receiver.close()


async def test_the_ports_of_an_engine_and_of_a_router(tmp_path: Path) -> None:
    """Case 47."""
    engine, router = (own_address(20), ports.ENGINE), (own_address(23), ports.ROUTER)
    marker = Marker(tmp_path / "unpickled")
    wrong = bodies(marker)
    endpoints = tmp_path / "endpoints.json"
    address = f"{engine[0]}:{engine[1]}"
    endpoints.write_text(dump([Group("aggregated", 0, "r1", True, False, address, (), "tiny-0")]))
    model = str(tiny_model.make(tmp_path / "model"))
    async with (
        process(engine, "engine", "--role", "aggregated", "--model", model, "--served-name", "tiny") as serving,
        process(router, "router", "--endpoints", endpoints.as_uri(), "--served-name", "tiny") as routing,
    ):
        expected = await complete(router)
        for port, started in ((engine, serving), (router, routing)):
            memory = Memory(started.pid)
            mistakes = statuses(await throw_all(port, wrong, end=False))
            assert len(mistakes) == len(wrong)
            assert all(status in (400, 413, 415) for status in mistakes), mistakes
            broken = statuses(await throw_all(port, broken_requests(marker)))
            assert all(400 <= status < 500 for status in broken), broken
            assert memory.growth() < LARGE_BYTES, f"{port}: {memory.growth() >> 20} MB"
            assert started.returncode is None
        assert not marker.path.exists()
        assert await complete(router) == await complete(engine) == expected
        text = (await get(router, "/metrics"))[1]
        (counted,) = re.findall(r'^kvferry_router_failures_total\{reason="bad_request"\} (\S+)$', text, re.MULTILINE)
        assert float(counted) >= len(wrong)
        state = json.loads((await get(engine, "/v1/state"))[1])
        assert state["blocks"]["free"] == state["blocks"]["total"]
        assert not any(state["requests"].values())
