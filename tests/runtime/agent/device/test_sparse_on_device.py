"""Sparse methods of engines with their KV on a device: the tokens that the host would keep, and no other place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
import torch

from device_engines import cache_of
from eventually import eventually
from kv_settings import Outcomes, kv_layout, transfer_config, transfer_params
from kvferry_contract import engines
from kvferry_contract.config import Integrity, Method, OverlapMode, Role
from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.agent.device.agent import DeviceAgent
from kvferry_runtime.agent.device.eviction import ObservedDeviceKv
from kvferry_runtime.agent.device.memory import DeviceCache, DeviceKv
from kvferry_runtime.codec.sparse.reference import key_scores
from kvferry_runtime.codec.sparse.scores import from_attention
from kvferry_runtime.codec.sparse.selection import Scores, select
from kvferry_runtime.errors import LayoutError, SettingsError, TransferFailed
from kvferry_runtime.ring.messages import Filled
from own_threads import new_threads
from scripted_sidecar import Relay, ScriptedSidecar
from stand_in_device import StandInDevice

LAYERS, BLOCK_TOKENS, TOKENS, KEPT = 2, 8, 60, 30
FIRST, LAST, BLOCKS = 3, 5, 10
LAYOUT = kv_layout(LAYERS)
SOURCE, TARGET = [6, 1, 9, 0, 3, 7, 2, 5], [4, 8, 2, 0]
Values = list[torch.Tensor]
"""Of each layer [parts, tokens, heads, head_dim]."""


class Half:
    """One agent with its sidecar, its device and its cache."""

    def __init__(self, stack: ExitStack, folder: Path, role: Role, integrity: Integrity, overlap: OverlapMode) -> None:
        folder.mkdir()
        self.device = StandInDevice(int(role is Role.DECODE), longest_delay=0.001)
        stack.callback(self.device.close)
        self.sidecar = stack.enter_context(ScriptedSidecar(folder))
        transfer = transfer_config(
            method=Method.SPARSE50, keep_exact_first=FIRST, keep_exact_last=LAST, integrity=integrity, overlap=overlap
        )
        self.agent = DeviceAgent(folder, role, transfer, self.device, BLOCK_TOKENS)
        stack.callback(self.agent.close, 5.0)
        self.agent.start(LAYOUT, {"model": "tiny"}, lambda: 0.0)
        self.sidecar.attach()
        eventually(lambda: self.agent.state().attached, "attached")
        self.tensors = cache_of(LAYOUT, BLOCKS, BLOCK_TOKENS, torch.device("cpu"))
        self.cache = DeviceCache(LAYOUT, self.tensors)

    def held(self, layer: int, blocks: list[int], tokens: int) -> torch.Tensor:
        """[parts, tokens, heads, head_dim]"""
        return torch.cat([self.tensors[layer][block] for block in blocks], dim=1)[:, :tokens]


Pair = tuple[Half, Half]


@pytest.fixture
def make_pair(tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    with ExitStack() as stack:

        def make(integrity: Integrity = Integrity.DIGEST, overlap: OverlapMode = OverlapMode.LAYERWISE) -> Pair:
            halves = (
                Half(stack, tmp_path / role.value, role, integrity, overlap) for role in (Role.PREFILL, Role.DECODE)
            )
            prefill, decode = halves
            return prefill, decode

        yield make


def values_of(tokens: int) -> Values:
    dice = torch.Generator().manual_seed(tokens)
    return [torch.randn(2, tokens, 2, 8, generator=dice).bfloat16() for _ in range(LAYERS)]


def move(pair: Pair, memory: DeviceKv, values: Values, relay_kind: type[Relay] = Relay) -> LoadResult | TransferFailed:
    """The layers are computed late: what chooses runs behind them."""
    prefill, decode = pair
    tokens = values[0].shape[1]
    sent, loaded = Outcomes(), Outcomes()
    relay = relay_kind(prefill.sidecar, decode.sidecar)
    relay.start()
    offer = prefill.agent.offer(transfer_params("prefill"), memory, tokens, sent)
    target = decode.agent.memory(decode.cache, TARGET)
    decode.agent.fetch(transfer_params("decode"), target, 0, tokens, loaded)
    for layer, whole in enumerate(values):

        def compute(layer: int = layer, whole: torch.Tensor = whole) -> None:
            for index, block in enumerate(SOURCE):
                part = whole[:, index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]
                prefill.tensors[layer][block, :, : part.shape[1]] = part

        prefill.device.compute.submit(compute)
        offer.layer_final(layer, 0, tokens)
    offer.seal(first_token=7)
    result = loaded.wait()
    relay.join()
    assert relay.error is None
    return result


def kept(whole: torch.Tensor, scores: Scores) -> torch.Tensor:
    return whole[:, torch.from_numpy(select(scores, KEPT, FIRST, LAST))]


@pytest.mark.parametrize("overlap", [OverlapMode.LAYERWISE, OverlapMode.REQUEST])
def test_what_is_looked_at_is_kept(make_pair: Callable[..., Pair], overlap: OverlapMode) -> None:
    """Case 32, and 33: chunks of any size, blocks in any order; the scores, too, are computed late."""
    prefill, decode = pair = make_pair(overlap=overlap)
    values, mass = values_of(TOKENS), torch.zeros(LAYERS, 2, TOKENS)
    looked_at = torch.rand(LAYERS, 2, TOKENS, generator=torch.Generator().manual_seed(5))
    prefill.device.compute.submit(lambda: mass.copy_(looked_at))
    memory = ObservedDeviceKv(prefill.cache, prefill.device, SOURCE, lambda layer: mass[layer])
    result = move(pair, memory, values)
    assert isinstance(result, LoadResult)
    assert (result.kept_tokens, result.first_token) == (KEPT, 7)
    assert result.wire_bytes < 0.6 * result.raw_bytes
    for layer, whole in enumerate(values):
        expected = kept(whole, from_attention(looked_at[layer].numpy()))
        assert torch.equal(decode.held(layer, TARGET, KEPT), expected), layer


def test_without_scores_the_keys_decide(make_pair: Callable[..., Pair]) -> None:
    prefill, decode = pair = make_pair()
    values = values_of(TOKENS)
    result = move(pair, prefill.agent.memory(prefill.cache, SOURCE), values)
    assert isinstance(result, LoadResult) and result.kept_tokens == KEPT
    for layer, whole in enumerate(values):
        assert torch.equal(decode.held(layer, TARGET, KEPT), kept(whole, key_scores(whole[0]).numpy())), layer


@pytest.mark.parametrize("tokens", [1, FIRST + LAST])
def test_short_prompts_arrive_whole(make_pair: Callable[..., Pair], tokens: int) -> None:
    prefill, decode = pair = make_pair()
    values = values_of(tokens)
    result = move(pair, prefill.agent.memory(prefill.cache, SOURCE), values)
    assert isinstance(result, LoadResult)
    assert (result.kept_tokens, result.wire_bytes) == (None, result.raw_bytes)
    for layer, whole in enumerate(values):
        assert torch.equal(decode.held(layer, TARGET, tokens), whole)


class Shifting(Relay):
    """Says of one chunk that one token fewer was kept before it."""

    def _deliver(self, filled: Filled) -> None:
        if filled.sequence != 1:
            super()._deliver(filled)
            return
        payload = np.frombuffer(self._prefill.ring.slot_payload(filled.slot), np.uint8)
        payload[:4].view("<u4")[:] -= 1
        with pytest.raises(AssertionError):  # it is not put in place
            super()._deliver(filled)


def test_tokens_in_another_place_are_never_taken_for_a_load(make_pair: Callable[..., Pair]) -> None:
    prefill, _ = pair = make_pair(integrity=Integrity.HEADER)
    result = move(pair, prefill.agent.memory(prefill.cache, SOURCE), values_of(TOKENS), Shifting)
    assert isinstance(result, TransferFailed)


def test_an_engine_that_cannot_evict_is_told_so_and_no_thread_stays(tmp_path: Path) -> None:
    others = set(threading.enumerate())
    with closing(StandInDevice()) as device:
        with pytest.raises(SettingsError, match="sparse50: this engine cannot take it"):
            DeviceAgent(
                tmp_path, Role.PREFILL, transfer_config(method=Method.SPARSE50), device, methods=engines.METHODS["vllm"]
            )
        assert not new_threads(others)


def test_one_token_must_fit_beside_what_says_that_it_is_kept(tmp_path: Path) -> None:
    others = set(threading.enumerate())
    with closing(StandInDevice()) as device:
        agent = DeviceAgent(tmp_path, Role.PREFILL, transfer_config(method=Method.SPARSE50, chunk_bytes=64), device)
        with pytest.raises(LayoutError, match=r"set transfer\.overlap\.chunkBytes to at least"):
            agent.start(LAYOUT, {}, lambda: 0.0)
        agent.close(5.0)
        assert not new_threads(others), "an agent that could not start has nothing to wait for"
