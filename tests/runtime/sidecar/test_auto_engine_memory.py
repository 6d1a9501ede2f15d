"""Method `auto` from engine memory to engine memory, through two real sidecars, their records and metrics."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kv_settings import Outcomes, transfer_config
from kvferry_contract.config import Method, OverlapMode, Role
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape
from own_addresses import own_address
from sidecar_pods import transfer_id, until
from sidecar_processes import SidecarProcess, running

pytestmark = pytest.mark.slow

LAYERS, HEADS, DIM, TOKENS = 8, 4, 64, 1200
LAYOUT = KvLayout(LAYERS, 0, (LayerShape(2, HEADS, DIM, KvDtype.BF16),) * LAYERS)
CONFIG: dict[str, Any] = {
    "method": Method.AUTO,
    "auto_methods": (Method.NONE, Method.INT8),
    "overlap": OverlapMode.AUTO,
    "chunk_bytes": 1 << 18,
    "buffer_bytes": 1 << 24,
}


def values(layer: int) -> np.ndarray:
    generator = np.random.default_rng(layer)
    return (generator.standard_normal((2, TOKENS, HEADS, DIM), np.float32).view(np.uint32) >> 16).astype(np.uint16)


async def test_every_transfer_says_how_it_went_and_why(tmp_path: Path) -> None:
    """The first one goes exact, as nothing is known; all arrive, within the error that int8 may have."""
    sides = [
        SidecarProcess(tmp_path / role.value, own_address(number), role, **CONFIG)
        for number, role in enumerate((Role.PREFILL, Role.DECODE), 1)
    ]
    async with running(*sides):
        with ExitStack() as stack:
            agents = [HostAgent(side.ring, side.role, transfer_config(**CONFIG)) for side in sides]
            for agent in agents:
                stack.callback(agent.close, 5.0)
                agent.start(LAYOUT, {}, lambda: 0.0)
            await until(lambda: all(agent.state().attached for agent in agents))
            source = [values(layer) for layer in range(LAYERS)]
            for number in range(1, 6):
                target = [np.zeros_like(source[0]) for _ in range(LAYERS)]
                sent, loaded = Outcomes(), Outcomes()
                params = TransferParams(transfer_id(number), "prefill", (), 60_000)
                offer = agents[0].offer(params, ContiguousKv(LAYOUT, source), TOKENS, sent)
                wanted = TransferParams(transfer_id(number), "decode", (sides[0].peer,), 60_000)
                agents[1].fetch(wanted, ContiguousKv(LAYOUT, target), 0, TOKENS, loaded)
                for layer in range(LAYERS):
                    offer.layer_final(layer, 0, TOKENS)
                    await asyncio.sleep(0.002)
                offer.seal(first_token=7)
                end = await asyncio.to_thread(loaded.wait)
                assert isinstance(end, LoadResult) and end.first_token == 7
                assert await asyncio.to_thread(sent.wait) is None
                record = await sides[0].get(f"/v1/transfers/{transfer_id(number)}")
                assert record["why"] in ({"unmeasured"} if number == 1 else {"hidden", "link_fast", "link_slow"})
                assert record["codec"] in record["codecs"] and set(record["codecs"]) <= {"none", "int8"}
                assert sum(record["codecs"].values()) == record["bytes_raw"] == end.raw_bytes
                for found, wrote in zip(target, source, strict=True):
                    error = np.abs(floats(found) - floats(wrote)) / np.abs(floats(wrote)).max(axis=-1, keepdims=True)
                    assert error.max() < 0.01
                    assert np.array_equal(found[:, :16], wrote[:, :16])
                    assert np.array_equal(found[:, -64:], wrote[:, -64:])
            metrics = await sides[0].get("/metrics")
            assert 'kvferry_method_chosen_total{method="none",why="unmeasured"} 1.0' in metrics


def floats(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)
