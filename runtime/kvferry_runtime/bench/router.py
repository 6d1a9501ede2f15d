"""What the router costs: time that it adds to a request, and requests a second on one core, with stub engines.

The router runs in a process of its own on one core; stub engines and the client share the others, so that the rate is
the router's. Each request streams, goes to both engines and is merged from both answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvferry_contract.endpoints import Group, dump
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.errors import KvferryError, SettingsError

SERVED_NAME = "stub"
START_SECONDS = 20.0
REQUEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """requests, at_a_time: for the rate. tokens: of an answer. prompt_tokens: of a prompt."""

    requests: int
    at_a_time: int
    tokens: int
    prompt_tokens: int

    def check(self) -> None:
        """Raises SettingsError: a number below 1."""
        for name in fields(self):
            if getattr(self, name.name) < 1:
                raise SettingsError(f"--{name.name.replace('_', '-')} {getattr(self, name.name)} is below 1")


def figures(load: Load) -> list[Figure]:
    """`router.added_ms` (against the decode stub asked directly) and `router.requests_per_s` (against the requests that
    a second of the router's CPU time carries).

    Raises:
        KvferryError: a process did not start, or a request failed.
    """
    cores = sorted(os.sched_getaffinity(0))
    router_cores, other_cores = {cores[0]}, set(cores[1:]) or {cores[0]}
    with ExitStack() as stack:
        stub = [sys.executable, "-m", "kvferry_runtime.router.stub", "--tokens", str(load.tokens)]
        prefill, decode = (stack.enter_context(_process(stub, other_cores)) for _ in range(2))
        prefill_address, decode_address = _first_line(prefill), _first_line(decode)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvferry-bench-")))
        endpoints = folder / "endpoints.json"
        endpoints.write_text(dump([_group("prefill", prefill_address), _group("decode", decode_address)]))
        router_port = _free_port()
        command = [
            "router",
            "--served-name",
            SERVED_NAME,
            "--port",
            str(router_port),
            "--endpoints",
            endpoints.as_uri(),
        ]
        options = ["--log-level", "error"]
        router = stack.enter_context(
            _process([sys.executable, "-m", "kvferry_runtime", *options, *command], router_cores)
        )
        os.sched_setaffinity(0, other_cores)
        try:
            return asyncio.run(_measure(router, f"127.0.0.1:{router_port}", decode_address, load))
        finally:
            os.sched_setaffinity(0, cores)


async def _measure(process: subprocess.Popen[str], router: str, engine: str, load: Load) -> list[Figure]:
    body = {"model": SERVED_NAME, "prompt": list(range(load.prompt_tokens)), "stream": True, "max_tokens": load.tokens}
    direct = _request(engine, body | {"return_token_ids": True, "stream_options": {"include_usage": True}})
    routed = _request(router, body)
    await _ready(process, router, routed)
    one_by_one = max(50, load.requests // 10)
    times: dict[str, list[float]] = {engine: [], router: []}
    for _ in range(one_by_one):
        for address, message in ((engine, direct), (router, routed)):
            times[address].append(await _timed(address, message))
    direct_ms, routed_ms = (statistics.median(times[address]) * 1000 for address in (engine, router))
    cpu, wall = _cpu_seconds(process.pid), time.perf_counter()
    await _send_all(router, routed, load)
    cpu, wall = _cpu_seconds(process.pid) - cpu, time.perf_counter() - wall
    added, rate, limit = routed_ms - direct_ms, load.requests / wall, load.requests / max(cpu, 0.01)
    return [
        Figure("router.added_ms", added, "ms", direct_ms, added / direct_ms, one_by_one),
        Figure("router.requests_per_s", rate, "requests/s", limit, rate / limit, load.requests),
    ]


async def _send_all(address: str, message: bytes, load: Load) -> None:
    """Send all requests over `at_a_time` connections, on each one after the other."""

    async def client(share: int) -> None:
        reader, writer = await asyncio.open_connection(*address.split(":"))
        try:
            for _ in range(share):
                await _exchange(reader, writer, message)
        finally:
            writer.close()

    async with asyncio.TaskGroup() as group:
        for number in range(load.at_a_time):
            group.create_task(client(load.requests // load.at_a_time + (number < load.requests % load.at_a_time)))


async def _timed(address: str, message: bytes) -> float:
    """Seconds of one whole request on a connection that is open already."""
    reader, writer = await asyncio.open_connection(*address.split(":"))
    try:
        started = time.perf_counter()
        await _exchange(reader, writer, message)
        return time.perf_counter() - started
    finally:
        writer.close()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes) -> None:
    """One request; the answer is read to the end of its chunked body, with as little work as can be."""
    writer.write(message)
    async with asyncio.timeout(REQUEST_SECONDS):
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200") or b"chunked" not in head:
            raise KvferryError(f"a request failed: {head[:200]!r}")
        await reader.readuntil(b"data: [DONE]\n\n")
        await reader.readuntil(b"\r\n0\r\n\r\n")


async def _ready(process: subprocess.Popen[str], address: str, message: bytes) -> None:
    """Wait until a request is answered."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            if process.poll() is not None:
                raise KvferryError(f"the router ended with exit code {process.returncode}; its message is above")
            try:
                await _timed(address, message)
            except (OSError, EOFError, KvferryError):
                await asyncio.sleep(0.1)
            else:
                return


def _request(address: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def _group(role: str, address: str) -> Group:
    return Group(role, 0, "bench", True, False, address, ("127.0.0.1:7400",), f"bench-{role}-0")


@contextmanager
def _process(command: list[str], cores: set[int]) -> Iterator[subprocess.Popen[str]]:
    """A process on these cores, ended with the block."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        os.sched_setaffinity(process.pid, cores)
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise KvferryError("a stub engine did not start")
    return line


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
