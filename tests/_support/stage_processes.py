"""The engines of one group as processes on addresses of their own, connected by UCX."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kv_settings import transfer_config
from kvferry_contract import env
from kvferry_contract.config import VERSION, GroupConfig, ModelConfig, Role, RuntimeConfig
from kvferry_contract.split import Split
from memory_limit import MemoryLimit
from own_addresses import own_address

NAME = "tiny"
PORT = 8000
START_SECONDS = 240


class StageProcess:
    """address: on which it listens, for HTTP and for the stage before. log: what it wrote."""

    def __init__(self, address: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.address = address
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; (0, reason) where nobody listens."""
        return self._ask(urllib.request.Request(f"http://{self.address}:{PORT}{path}"))

    def complete(self, **fields: Any) -> tuple[int, dict[str, Any]]:
        body = json.dumps({"temperature": 0, "return_token_ids": True, **fields}).encode()
        status, text = self._ask(urllib.request.Request(f"http://{self.address}:{PORT}/v1/completions", body))
        return status, json.loads(text)

    def _ask(self, request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)


@dataclass(frozen=True)
class Launch:
    """How the processes of a group are started.

    limits: of memory, one for each stage, or none. hosts: by which the stages know each other, in place of their
    addresses. environ: variables beside their own.
    """

    dtype: str = "auto"
    limits: Sequence[MemoryLimit] = ()
    hosts: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def group(folder: Path, split: Split, scratch: Path, launch: Launch = Launch()) -> Iterator[list[StageProcess]]:
    """An aggregated model over a group of stages, all of them ready. What still runs at the end is killed."""
    with starting(folder, split, scratch, launch) as stages:
        wait_ready(stages)
        yield stages


def wait_ready(stages: Sequence[StageProcess]) -> None:
    deadline = time.monotonic() + START_SECONDS
    for stage in stages:
        while stage.get("/readyz")[0] != 200:
            assert stage.process.poll() is None and time.monotonic() < deadline, stage.log
            time.sleep(0.1)  # a stage tells whether it is ready only when it is asked


@contextlib.contextmanager
def starting(folder: Path, split: Split, scratch: Path, launch: Launch = Launch()) -> Iterator[list[StageProcess]]:
    """As `group`, not ready yet."""
    addresses = [own_address(stage) for stage in range(split.stages)]
    key = scratch / "key"
    key.write_text("0123456789abcdef" * 4)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(_stage(folder, split, stage, address, launch.hosts or addresses, scratch, launch))
            for stage, address in enumerate(addresses)
        ]


@contextlib.contextmanager
def _stage(
    folder: Path, split: Split, stage: int, address: str, hosts: Sequence[str], scratch: Path, launch: Launch
) -> Iterator[StageProcess]:
    config, log = scratch / f"config-{stage}.json", scratch / f"stage-{stage}.log"
    place = GroupConfig("default", NAME, "r1", Role.AGGREGATED, stage, split, Split(1), 1)
    model = ModelConfig(f"file://{folder}", "", NAME, "/models")
    config.write_text(RuntimeConfig(VERSION, model, place, transfer_config(), drain_seconds=60.0).to_json())
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KVFERRY_")}
    environ |= {
        env.CONFIG: str(config), env.KEY_FILE: str(scratch / "key"), env.POD_IP: address, env.GROUP_INDEX: "0",
        env.STAGE_HOSTS: ",".join(hosts), **launch.environ,
    }  # fmt: skip
    command = [
        sys.executable, "-m", "kvferry_runtime", "engine", "--port", str(PORT), "--kv-blocks", "400",
        "--dtype", launch.dtype,
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch.limits[stage].command(command) if launch.limits else command,
            env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield StageProcess(address, process, log)
    finally:
        process.kill()
        process.wait()
