"""Sidecars as real processes, as a pod runs them, with scripted agents in the test."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from kv_settings import transfer_config
from kvferry_contract import env, ports
from kvferry_contract.config import VERSION, GroupConfig, ModelConfig, Role, RuntimeConfig
from kvferry_contract.split import Split
from kvferry_runtime.errors import RingError
from kvferry_runtime.ring.messages import Attached
from scripted_agent import ScriptedAgent

START_SECONDS = 120.0
END_SECONDS = 120.0
ANSWER_SECONDS = 30.0


class SidecarProcess:
    """`kvferry-runtime sidecar` in a folder of its own, on an address of its own."""

    def __init__(self, directory: Path, host: str, role: Role, drain: float = 5.0, **transfer: Any) -> None:
        self.host = host
        self.role = role
        self.ring = directory / "ring"
        self.ring.mkdir(parents=True)
        config = RuntimeConfig(
            version=VERSION,
            model=ModelConfig(uri="file:///m", revision="", served_name="m", directory="/m"),
            group=GroupConfig("ns", "m", "r1", role, 0, Split(1), Split(1), 1),
            transfer=transfer_config(**transfer),
            drain_seconds=drain,
        )
        (directory / "config.json").write_text(config.to_json())
        (directory / "key").write_text("0123456789abcdef" * 4)
        self._log = directory / "log"
        self._environment = {
            "UCX_NET_DEVICES": "lo",  # else UCX may take a network that others on this machine make and remove
            **os.environ,
            env.CONFIG: str(directory / "config.json"),
            env.KEY_FILE: str(directory / "key"),
            env.RING_DIR: str(self.ring),
            env.POD_IP: host,
            env.POD_NAME: f"m-{role.value}-{host}",
            env.ROLE: role.value,
        }
        self.process: asyncio.subprocess.Process

    @property
    def peer(self) -> str:
        return f"{self.host}:{ports.SIDECAR_PEER}"

    async def start(self) -> None:
        with self._log.open("a") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "kvferry_runtime", "sidecar", env=self._environment, stderr=log
            )
        async with asyncio.timeout(START_SECONDS):
            while await self.get("/healthz") is None:
                assert self.process.returncode is None, f"the sidecar ended at once: {self._log.read_text()}"
                await asyncio.sleep(0.05)

    async def get(self, path: str) -> Any:
        """The JSON (or text) answer, whatever its status; None if nobody answers."""
        return await asyncio.to_thread(_get, f"http://{self.host}:{ports.SIDECAR_HTTP}{path}")

    async def agent(self, layers: range = range(4), total_layers: int = 4) -> ScriptedAgent:
        agent = ScriptedAgent(self.ring, self.role.value, layers, total_layers, {})
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    assert isinstance(await agent.attach(), Attached)
                    return agent
                except RingError:
                    await asyncio.sleep(0.05)

    def kill(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def wait(self) -> int:
        return await asyncio.wait_for(self.process.wait(), END_SECONDS)

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@asynccontextmanager
async def running(*sidecars: SidecarProcess) -> AsyncIterator[None]:
    async with AsyncExitStack() as started:
        for sidecar in sidecars:
            started.push_async_callback(sidecar.stop)
            await sidecar.start()
        yield


def _get(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            body = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            body = error.read()
    except OSError:
        return None
    text = body.decode()
    return json.loads(text) if text.startswith("{") else text
