"""A model served by real processes, for tests: `kvferry local up`, an aggregated engine beside it, a client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from kvferry_contract import pairs, ports
from kvferry_contract.pairs import PairState
from own_addresses import own_address

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "build/models/SmolLM2-135M-Instruct"
BIN = Path(sys.executable).parent
START_SECONDS = 900
AGAIN_SECONDS = 900
"""For what was killed to be started again, and to serve."""
ANSWER_SECONDS = 900
"""For one answer, with all that are asked for at the same time before it."""
TRIES = 5
REST_SECONDS = 120
"""For what is given back once an answer is there, and for both ends to know that a transfer is over."""


def unique(name: str) -> str:
    """Addresses follow from names, and two checkouts may be tested on one machine at the same time."""
    return f"{name}-{os.getpid()}"


def manifest(
    name: str,
    method: str = "none",
    policy: str = "Recompute",
    decode: int = 1,
    timeout_seconds: int = 120,
    stages: tuple[int, int] = (1, 1),
) -> str:
    """A `DisaggregatedModel` of the test model as YAML; small rings, so that several fit on one machine.

    stages: of prefill and of decode.
    """
    return yaml.safe_dump(
        {
            "apiVersion": "kvferry.io/v1alpha1",
            "kind": "DisaggregatedModel",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "model": {
                    "uri": f"file:///models/{MODEL.name}",
                    "servedName": "smollm2",
                    "cache": {"type": "hostPath", "path": "/var/lib/kvferry/models"},
                },
                "engine": {"type": "reference"},
                "prefill": {"replicas": 1, "parallelism": {"pipeline": stages[0]}},
                "decode": {"replicas": decode, "parallelism": {"pipeline": stages[1]}},
                "router": {"minPromptTokens": 1},
                "transfer": {
                    "compression": {"method": method},
                    "failurePolicy": policy,
                    "bufferBytes": "64Mi",
                    "timeoutSeconds": timeout_seconds,
                    # once at the beginning, and after that only when something broke
                    "verify": {"intervalSeconds": 3600},
                },
            },
        }
    )


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod as `instance.json` tells of it. stage: of its group's pipeline."""

    name: str
    role: str
    address: str
    pids: Mapping[str, int]
    stage: int

    @property
    def engine(self) -> str:
        return f"http://{self.address}:8000"

    @property
    def sidecar(self) -> str:
        return f"http://{self.address}:7401"


class Serving:
    """A running deployment."""

    def __init__(self, process: subprocess.Popen[bytes], record: Path, output: Path) -> None:
        self.process = process
        self._record = record
        self._output = output

    def record(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self._record.read_text())
        return parsed

    @property
    def url(self) -> str:
        return str(self.record()["url"])

    def pods(self, role: str) -> list[Pod]:
        return [
            Pod(
                name=pod["name"],
                role=pod["role"],
                address=pod["address"],
                pids={item["name"]: item["pid"] for item in pod["containers"]},
                stage=pod["stage"],
            )
            for pod in self.record()["pods"]
            if pod["role"] == role
        ]

    def ready(self) -> bool:
        """Whether people were told that they can send requests now."""
        return "is ready: send requests to" in self._output.read_text()

    def proven(self) -> bool:
        """Whether the router has sent KV from every prefill to every decode group."""
        with urllib.request.urlopen(f"{self.url}/v1/pairs", timeout=60) as response:
            found = pairs.load(response.read().decode()).pairs
        groups = [sum(pod.stage == 0 for pod in self.pods(role)) for role in ("prefill", "decode")]
        expected = groups[0] * groups[1]
        return [pair.state for pair in found] == [PairState.VERIFIED] * expected


@contextlib.contextmanager
def serving(folder: Path, name: str, text: str) -> Iterator[Serving]:
    """Start the object in `text` in local mode; everything is gone afterwards.

    Every pod is ready, and the router has proven each pair, so that no request of its own is under way.
    """
    path = folder / f"{name}.yaml"
    path.write_text(text)
    output = (folder / f"{name}.log").open("wb")
    process = subprocess.Popen(
        [BIN / "kvferry", "local", "up", "-f", path, "--model-dir", MODEL.parent],
        env=os.environ | {"XDG_RUNTIME_DIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )
    try:
        instance = Serving(process, folder / "kvferry" / f"default-{name}" / "instance.json", Path(output.name))
        deadline = time.monotonic() + START_SECONDS
        while not instance.ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"not ready: {Path(output.name).read_text()[-3000:]}")
            time.sleep(0.2)  # it is told in a file, which takes what it prints for as long as it runs
        while not instance.proven():
            assert time.monotonic() < deadline, f"not proven: {Path(output.name).read_text()[-3000:]}"
            time.sleep(0.2)  # the router tells only when it is asked
        yield instance
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        output.close()


@contextlib.contextmanager
def aggregated(folder: Path) -> Iterator[str]:
    """One engine that serves alone; gives its URL."""
    host, port = own_address(19), ports.ENGINE
    output = (folder / "aggregated.log").open("wb")
    process = subprocess.Popen(
        [BIN / "kvferry-runtime", "engine", "--role", "aggregated", "--model", MODEL, "--served-name", "smollm2",
         "--host", host, "--port", str(port)],
        stdin=subprocess.DEVNULL, stdout=output, stderr=output,
    )  # fmt: skip
    try:
        asyncio.run(until_ready(f"http://{host}:{port}/readyz"))
        yield f"http://{host}:{port}"
    finally:
        process.terminate()
        try:
            process.wait(300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        output.close()


async def until_ready(url: str) -> None:
    async with aiohttp.ClientSession() as session:

        async def answers() -> bool:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(url, timeout=aiohttp.ClientTimeout(60)) as response:
                    return response.status == 200
            return False

        await until(answers, START_SECONDS, f"{url} answers 200")


async def until(condition: Callable[[], Any], seconds: float, what: str) -> None:
    """Wait until `condition` (a function or coroutine function) is true; `what` names it when it never is."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.05)


class Client:
    """Sends completions of token ids and returns bodies."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def get(self, url: str) -> dict[str, Any]:
        async with self._session.get(url) as response:
            parsed: dict[str, Any] = await response.json()
            return parsed

    async def complete(self, url: str, prompt: Sequence[int], max_tokens: int = 8) -> tuple[int, dict[str, Any]]:
        body = {
            "model": "smollm2",
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "return_token_ids": True,
        }
        async with self._session.post(f"{url}/v1/completions", json=body) as response:
            return response.status, await response.json()


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[Client]:
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Client(session)


async def transfer(client: Client, url: str) -> dict[str, Any]:
    """The record of a transfer at one end, once that end knows that it is over."""
    found: dict[str, Any] = {}

    async def over() -> bool:
        found.update(await client.get(url))
        return bool(found["over"])

    await until(over, REST_SECONDS, f"{url} tells of the end")
    return found


async def caught(
    ask: Callable[[], Coroutine[Any, Any, tuple[int, dict[str, Any]]]], look: Callable[[], Awaitable[bool]], what: str
) -> asyncio.Task[tuple[int, dict[str, Any]]]:
    """A request that is open while `look` is true; one that is over before that was seen is asked for again."""
    for _ in range(TRIES):
        request = asyncio.create_task(ask())

        async def seen(request: asyncio.Task[Any] = request) -> bool:
            return await look() or request.done()

        await until(seen, ANSWER_SECONDS, what)
        if not request.done():
            return request
        status, body = await request
        assert status == 200, body
    raise AssertionError(f"{TRIES} requests were over before it was seen that {what}")


async def transferred_again(client: Client, url: str, prompt: Sequence[int], expected: list[int]) -> None:
    """Within `AGAIN_SECONDS` a request is served by a transfer, and no answer before it was wrong."""

    async def transferred() -> bool:
        status, body = await client.complete(url, prompt)
        if status != 200:
            assert body["error"]["message"]
            return False
        assert tokens(body) == expected
        return bool(body["kvferry"]["mode"] == "transferred")

    await until(transferred, AGAIN_SECONDS, "a request is served by a transfer again")


def answer_of(url: str, prompt: Sequence[int]) -> list[int]:
    """The tokens that one engine answers with, for fixtures: no event loop may run."""

    async def answer() -> list[int]:
        async with client() as asking:
            status, body = await asking.complete(url, prompt)
            assert status == 200, body
            return tokens(body)

    return asyncio.run(answer())


def tokens(body: Mapping[str, Any]) -> list[int]:
    return [int(token) for token in body["choices"][0]["token_ids"]]
