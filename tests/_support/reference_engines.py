"""Reference engines in this process, and one call to get a whole completion out of them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvferry_contract.config import FailurePolicy, ModelConfig, Role
from kvferry_contract.split import Split
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import KvAgent
from kvferry_runtime.engine.reference.building import build_engine
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.openai import Api, parse
from kvferry_runtime.engine.reference.request import Delta, Failed, Finished
from kvferry_runtime.engine.reference.settings import EngineSettings

NAME = "tiny"

SETTINGS = EngineSettings(
    role=Role.AGGREGATED,
    model=ModelConfig(uri="file:///tiny", revision="1", served_name=NAME, directory="/models"),
    host="127.0.0.1",
    port=0,
    device="cpu",
    dtype="auto",
    threads=1,
    rows=8,
    kv_blocks=400,
    failure_policy=FailurePolicy.RECOMPUTE,
    drain_seconds=5.0,
    transfer=None,
    ring_directory=None,
    split=Split(1),
    peer_split=Split(1),
)


def start(folder: Path, agent: KvAgent | None = None, **changes: Any) -> Engine:
    """A running engine; the caller closes it."""
    return build_engine(folder, dataclasses.replace(SETTINGS, **changes), agent, lambda: None)


@dataclass
class Completion:
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    end: Finished | None = None
    failed: Failed | None = None


async def complete(engine: Engine, prompt: str | list[int], **fields: Any) -> Completion:
    """Run one completion to its end."""
    asked = parse(Api.COMPLETIONS, {"prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}, NAME)
    result = Completion()
    async with aclosing(engine.generate(asked, *await engine.prepare(asked))) as events:
        async for event in events:
            if isinstance(event, Delta):
                assert event.index == len(result.tokens)
                result.tokens.append(event.token)
                result.text += event.text
            elif isinstance(event, Failed):
                result.failed = event
            else:
                result.end = event
    return result


def transfer(number: int, role: str, deadline_ms: int = 60_000, prefill_stages: int = 1) -> dict[str, Any]:
    """`kv_transfer_params` as the router writes them."""
    peers = tuple(f"127.0.0.{stage + 1}:7400" for stage in range(prefill_stages)) if role == "decode" else ()
    return TransferParams(f"{number:032x}", role, peers, deadline_ms).to_dict()


async def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for what another thread brings about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come true in time"
        await asyncio.sleep(0.01)
