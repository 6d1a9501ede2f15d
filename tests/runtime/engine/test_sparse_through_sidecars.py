"""Sparse transfers all the way: engine, agent, sidecar, network, sidecar, agent, engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import reference_engines as engines
from kv_settings import transfer_config
from kvferry_contract.config import FailurePolicy, Method, Role, TransferConfig
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.request import Mode
from own_addresses import own_address
from reference_engines import until
from sidecar_processes import SidecarProcess, running
from sparse_answers import ANSWER, HALF, expected, loaded
from tiny_model import prompt_of

pytestmark = pytest.mark.slow

LENGTHS = (30, 81, 300, 600, 1100)
"""Prompts within the protected tokens are sent whole; the longest ones are computed in several passes."""


@dataclass
class Pair:
    prefill: Engine
    decode: Engine
    peer: str

    async def ask(self, number: int, prompt: list[int]) -> engines.Completion:
        """What the router does: both at the same time, one transfer id."""

        def params(role: str, peers: tuple[str, ...]) -> dict[str, object]:
            return {"kv_transfer_params": TransferParams(f"{number:032x}", role, peers, 60_000).to_dict()}

        _, answer = await asyncio.gather(
            engines.complete(self.prefill, prompt, max_tokens=1, ignore_eos=True, **params("prefill", ())),
            engines.complete(self.decode, prompt, max_tokens=ANSWER, ignore_eos=True, **params("decode", (self.peer,))),
        )
        return answer


def settings() -> TransferConfig:
    return transfer_config(
        method=Method.SPARSE50, keep_exact_first=HALF.first, keep_exact_last=HALF.last, chunk_bytes=64 << 10
    )


@pytest.fixture
async def pair(tiny: Path, tmp_path: Path) -> AsyncIterator[Pair]:
    """Two pods; a transfer that fails ends the request."""
    transfer = settings()
    changes = {"transfer": transfer, "failure_policy": FailurePolicy.FAIL}
    sidecars = {
        role: SidecarProcess(
            tmp_path / role.value, host, role, method=transfer.method, keep_exact_first=HALF.first,
            keep_exact_last=HALF.last, chunk_bytes=transfer.chunk_bytes,
        )
        for role, host in ((Role.PREFILL, own_address(1)), (Role.DECODE, own_address(2)))
    }  # fmt: skip
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(*sidecars.values()))
        started = []
        for role, sidecar in sidecars.items():
            agent = HostAgent(sidecar.ring, role, transfer)
            started.append(await asyncio.to_thread(engines.start, tiny, agent, role=role, **changes))
            stack.callback(started[-1].close, 5)
            await until(lambda agent=agent: agent.state().attached)
        yield Pair(*started, sidecars[Role.PREFILL].peer)


async def test_decode_goes_on_as_an_engine_that_evicts_by_itself(pair: Pair, tiny: Path) -> None:
    """Case 32: half of the tokens cross the network, the others keep their true positions, and the answer is the same
    as of one engine that keeps the same half of its own cache."""
    answers = await asyncio.gather(*(pair.ask(length, prompt_of(length)) for length in LENGTHS))
    runner = loaded(tiny)
    for length, answer in zip(LENGTHS, answers, strict=True):
        assert answer.failed is None
        assert answer.end is not None and answer.end.mode is Mode.TRANSFERRED
        assert answer.tokens == expected(runner, prompt_of(length), HALF), f"prompt of {length} tokens"
        moved = answer.end.transfer
        assert moved is not None
        share = HALF.kept(length) / length
        assert moved.kept_tokens == (HALF.kept(length) if HALF.evicts(length) else None)
        assert share * moved.raw_bytes <= moved.wire_bytes <= (share + 0.05) * moved.raw_bytes
    for engine in (pair.prefill, pair.decode):
        await until(lambda engine=engine: engine.pool.free == engine.pool.total and engine.loop.idle())
