"""Engine memory to engine memory through two real sidecars and UCX: every layer is compared, bit by bit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from kv_settings import Outcomes, transfer_config
from kvferry_contract.config import Role
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import KvMemory, LoadResult
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.agent.paged import PagedCache, PagedKv
from kvferry_runtime.errors import LayoutError, Reason
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape
from own_addresses import own_address
from sidecar_pods import transfer_id, until
from sidecar_processes import SidecarProcess, running

pytestmark = pytest.mark.slow

LAYERS, HEADS, DIM, TOKENS = 8, 2, 64, 300
CHUNK = 1 << 16
BF16 = KvLayout(LAYERS, 0, (LayerShape(2, HEADS, DIM, KvDtype.BF16),) * LAYERS)
PACKED = KvLayout(LAYERS, 0, (LayerShape(2, HEADS, DIM, KvDtype.UINT8),) * LAYERS)
CANARY = 0xC5


class End(NamedTuple):
    sidecar: SidecarProcess
    agent: HostAgent


@asynccontextmanager
async def ends(folder: Path, prefill: KvLayout, decode: KvLayout, **mark: str) -> AsyncIterator[tuple[End, End]]:
    """An engine's agent beside each of two sidecars. mark: what decode's fingerprint has beside its layout."""
    config: dict[str, Any] = {"chunk_bytes": CHUNK, "buffer_bytes": 1 << 21}
    sides = [
        SidecarProcess(folder / role.value, own_address(number), role, **config)
        for number, role in enumerate((Role.PREFILL, Role.DECODE), 1)
    ]
    async with running(*sides):
        with ExitStack() as stack:
            agents = []
            for side, layout in zip(sides, (prefill, decode), strict=True):
                agent = HostAgent(side.ring, side.role, transfer_config(**config))
                stack.callback(agent.close, 5.0)
                agent.start(layout, mark if side.role is Role.DECODE else dict.fromkeys(mark, ""), lambda: 0.0)
                agents.append(agent)
            await until(lambda: all(agent.state().attached for agent in agents))
            yield End(sides[0], agents[0]), End(sides[1], agents[1])


async def move(prefill: End, decode: End, source: KvMemory, target: KvMemory, tokens: int = TOKENS) -> tuple[Any, Any]:
    """One transfer, layer after layer; what each side reports."""
    sent, loaded = Outcomes(), Outcomes()
    offer = prefill.agent.offer(TransferParams(transfer_id(1), "prefill", (), 60_000), source, tokens, sent)
    params = TransferParams(transfer_id(1), "decode", (prefill.sidecar.peer,), 60_000)
    decode.agent.fetch(params, target, 0, tokens, loaded)
    for layer in range(LAYERS):
        offer.layer_final(layer, 0, tokens)
    offer.seal(first_token=7)
    end = await asyncio.to_thread(loaded.wait)
    if not isinstance(end, LoadResult):
        offer.cancel("decode gave up")
    return await asyncio.to_thread(sent.wait), end


async def digests(*sides: End) -> list[str]:
    records = [await side.sidecar.get(f"/v1/transfers/{transfer_id(1)}") for side in sides]
    assert [record["state"] for record in records] == ["committed"] * len(sides)
    return [record["digest"] for record in records]


def values(layer: int, tokens: int = TOKENS) -> np.ndarray:
    return np.random.default_rng(layer).integers(0, 2**16, (2, tokens, HEADS, DIM), np.uint16)


class Pool:
    """A paged cache with canary pages before, between and after the pages of one request."""

    def __init__(self, layout: KvLayout, block_tokens: int, tokens: int = TOKENS) -> None:
        needed = -(-tokens // block_tokens)
        dtype = np.dtype(f"u{layout.shapes[0].dtype.itemsize}")
        fill = int.from_bytes(bytes([CANARY]) * dtype.itemsize)
        shape = (2 * needed + 1, 2, block_tokens, HEADS, DIM)
        self.tensors = [np.full(shape, fill, dtype) for _ in layout.layers]
        self.block_ids = list(range(1, 2 * needed, 2))[::-1]
        self.kv = PagedKv(PagedCache(layout, self.tensors), self.block_ids)
        self.fill = fill

    def write(self, layer: int, content: np.ndarray) -> None:
        size = self.tensors[0].shape[2]
        for number, block in enumerate(self.block_ids):
            part = content[:, number * size : (number + 1) * size]
            self.tensors[layer][block, :, : part.shape[1]] = part

    def read(self, layer: int, tokens: int = TOKENS) -> np.ndarray:
        return np.concatenate([self.tensors[layer][block] for block in self.block_ids], axis=1)[:, :tokens]

    def untouched(self, tokens: int = 0) -> bool:
        """Whether all but the first `tokens` of the request is as it was."""
        size = self.tensors[0].shape[2]
        for tensor in self.tensors:
            left = tensor.copy()
            for number, block in enumerate(self.block_ids):
                left[block, :, : max(0, tokens - number * size)] = self.fill
            if not (left == self.fill).all():
                return False
        return True


@pytest.mark.parametrize(("ours", "theirs"), [(16, 16), (16, 64), (64, 16)])
async def test_every_layer_is_the_same_at_both_ends_whatever_the_block_sizes(
    tmp_path: Path, ours: int, theirs: int
) -> None:
    """Case 42, equal dtype: blocks of another size are no other KV, and nothing beside the request is written."""
    async with ends(tmp_path, BF16, BF16) as (prefill, decode):
        source, target = Pool(BF16, ours), Pool(BF16, theirs)
        for layer in range(LAYERS):
            source.write(layer, values(layer))
        sent, loaded = await move(prefill, decode, source.kv, target.kv)
        assert sent is None
        assert isinstance(loaded, LoadResult) and loaded.first_token == 7
        assert loaded.raw_bytes == LAYERS * TOKENS * 2 * HEADS * DIM * 2
        for layer in range(LAYERS):
            assert target.read(layer).tobytes() == values(layer).tobytes(), layer
        assert target.untouched(TOKENS)
        ours_, theirs_ = await digests(prefill, decode)
        assert ours_ == theirs_
        assert int(ours_, 16)


async def test_another_kv_dtype_is_refused_by_name_and_nothing_is_written(tmp_path: Path) -> None:
    """Case 42: prefill keeps bf16 in blocks of 16, decode eight bits in blocks of 128."""
    async with ends(tmp_path, BF16, PACKED, **{"kv.scales": "fp8 e4m3"}) as (prefill, decode):
        source, target = Pool(BF16, 16), Pool(PACKED, 128)
        _, failed = await move(prefill, decode, source.kv, target.kv)
        assert failed.reason is Reason.FINGERPRINT_MISMATCH
        for named in ("kv.shape", "2x2x64:bf16", "2x2x64:uint8"):
            assert named in failed.message, failed.message
        assert target.untouched()


VIEWS = {
    "every second row": lambda base: base[:, ::2, :],
    "transposed": lambda base: np.ascontiguousarray(base[:, :8, :].transpose(1, 0, 2)).transpose(1, 0, 2),
    "Fortran order": lambda base: np.asfortranarray(base[:, :8, :]),
    "in order": lambda base: np.ascontiguousarray(base[:, ::2, :]),
}


@pytest.mark.parametrize("kind", ["numpy", "torch"])
async def test_logical_values_arrive_or_nothing_is_sent(tmp_path: Path, kind: str) -> None:
    """Case 24: views of shape (4, 8, 64) out of (4, 16, 64) fp16; 4 tokens of 8 heads."""
    layout = KvLayout(LAYERS, 0, (LayerShape(1, 8, DIM, KvDtype.FP16),) * LAYERS)
    base = np.random.default_rng(24).standard_normal((4, 16, DIM)).astype(np.float16)

    def memory(views: Sequence[np.ndarray]) -> ContiguousKv:
        tensors: list[Any] = [view[None] for view in views]
        if kind == "torch":
            import torch

            tensors = [torch.from_numpy(tensor) for tensor in tensors]
        return ContiguousKv(layout, tensors)

    async with ends(tmp_path, layout, layout) as (prefill, decode):
        for name, view in VIEWS.items():
            if name != "in order":
                with pytest.raises(LayoutError, match="not contiguous"):
                    memory([view(base)] * LAYERS)
        assert prefill.agent.state().open_sends == 0
        target = [np.zeros((1, 4, 8, DIM), np.float16) for _ in range(LAYERS)]
        source = [VIEWS["in order"](base) + layer for layer in range(LAYERS)]
        sent, loaded = await move(prefill, decode, memory(source), ContiguousKv(layout, target), 4)
        assert sent is None
        assert isinstance(loaded, LoadResult)
        for layer in range(LAYERS):
            assert target[layer].tobytes() == (base[:, ::2, :] + layer).astype(np.float16).tobytes()
