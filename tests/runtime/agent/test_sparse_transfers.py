"""Sparse methods on the ring: kept tokens one behind the other, bit for bit, or no load at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from eventually import eventually
from kv_settings import Outcomes, kv_layout, transfer_config, transfer_params
from kvferry_contract import engines
from kvferry_contract.config import Integrity, Method, OverlapMode, Role
from kvferry_runtime.agent.base import KvMemory, LoadResult
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.agent.eviction import Eviction
from kvferry_runtime.agent.paged import PagedCache, PagedKv
from kvferry_runtime.agent.sends import Send
from kvferry_runtime.codec.sparse.budget import SPARSE, Budget
from kvferry_runtime.codec.sparse.host_scores import from_keys
from kvferry_runtime.codec.sparse.selection import Scores, select
from kvferry_runtime.errors import CodecRefused, LayoutError, Reason, SettingsError, TransferFailed
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape
from kvferry_runtime.ring.messages import Filled
from scripted_sidecar import Relay, ScriptedSidecar

LAYERS, FIRST, LAST = 3, 4, 16
LAYOUT = kv_layout(LAYERS)
Pair = tuple[HostAgent, ScriptedSidecar, HostAgent, ScriptedSidecar]


class Scored(ContiguousKv):
    """As of an engine that knows what is looked at: the later of two tokens always matters more."""

    def scores(self, layer: int) -> Scores:
        return np.arange(self.tokens, dtype=np.float32) * (1 if layer % 2 else -1)

    tokens = 0


@pytest.fixture
def make_pair(tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    """A prefill and a decode agent, each attached to a scripted sidecar of its own. changes: of both configurations."""
    with ExitStack() as stack:

        def make(decode_method: Method | None = None, **changes: object) -> Pair:
            ends: list[tuple[HostAgent, ScriptedSidecar]] = []
            for role in (Role.PREFILL, Role.DECODE):
                folder = tmp_path / role.value
                folder.mkdir()
                sidecar = stack.enter_context(ScriptedSidecar(folder))
                settings = {"method": Method.SPARSE50, "keep_exact_first": FIRST, "keep_exact_last": LAST, **changes}
                if role is Role.DECODE and decode_method is not None:
                    settings["method"] = decode_method
                agent = HostAgent(folder, role, transfer_config(**settings))
                stack.callback(agent.close, 5.0)
                ends.append((agent, sidecar))
            # not before both exist: kernels may have to be compiled, and a sidecar that is not read answers no beat
            for agent, sidecar in ends:
                agent.start(LAYOUT, {"model": "tiny"}, lambda: 0.0)
                sidecar.attach()
                # an offer before that ends with NO_CONNECTOR
                eventually(lambda agent=agent: agent.state().attached, "attached")
            return (*ends[0], *ends[1])

        yield make


def tensors(tokens: int, seed: int = 1) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0x3F00, 0x4000, (2, tokens, 2, 8)).astype(np.uint16) for _ in range(LAYERS)]


def move(
    pair: Pair, source: KvMemory, target: KvMemory, tokens: int, relay_kind: type[Relay] = Relay
) -> LoadResult | TransferFailed:
    prefill, prefill_sidecar, decode, decode_sidecar = pair
    sent, loaded = Outcomes(), Outcomes()
    relay = relay_kind(prefill_sidecar, decode_sidecar)
    relay.start()
    offer = prefill.offer(transfer_params("prefill"), source, tokens, sent)
    decode.fetch(transfer_params("decode"), target, 0, tokens, loaded)
    for start in range(0, tokens, 70):
        for layer in range(LAYERS):
            offer.layer_final(layer, start, min(start + 70, tokens))
    offer.seal(first_token=7)
    result = loaded.wait()
    relay.join()
    assert relay.error is None
    return result


def expected(data: list[np.ndarray], layer: int, scores: Scores, kept: int) -> np.ndarray:
    return data[layer][:, select(scores, kept, FIRST, LAST)]


@pytest.mark.parametrize("overlap", [OverlapMode.LAYERWISE, OverlapMode.REQUEST])
@pytest.mark.parametrize("method", [Method.SPARSE50, Method.SPARSE75])
def test_kept_tokens_lie_one_behind_the_other_in_room_for_no_more(make_pair, method: Method, overlap) -> None:
    """Case 32: the budget is that of 300 tokens, however many chunks they become."""
    pair = make_pair(method=method, overlap=overlap)
    kept = Budget(SPARSE[method.value], FIRST, LAST).kept(300)
    data, target = tensors(300), [np.zeros((2, kept, 2, 8), np.uint16) for _ in range(LAYERS)]
    source = Scored(LAYOUT, data)
    source.tokens = 300
    result = move(pair, source, ContiguousKv(LAYOUT, target), 300)
    assert isinstance(result, LoadResult)
    assert (result.kept_tokens, result.first_token) == (kept, 7)
    assert result.wire_bytes < 1.1 * kept / 300 * result.raw_bytes
    for layer, tensor in enumerate(target):
        assert np.array_equal(tensor, expected(data, layer, source.scores(layer), kept))


def test_without_scores_the_keys_decide_and_pages_do_not_matter(make_pair) -> None:
    data = tensors(200)
    pages = [np.zeros((20, 2, 16, 2, 8), np.uint16) for _ in range(LAYERS)]
    order = np.random.default_rng(5).permutation(20)[:7].tolist()
    target = PagedKv(PagedCache(LAYOUT, pages), order)
    result = move(make_pair(), ContiguousKv(LAYOUT, data), target, 200)
    assert isinstance(result, LoadResult) and result.kept_tokens == 100
    for layer in range(LAYERS):
        scores = from_keys([data[layer][0].reshape(-1, 8)], LAYOUT.shape(layer))
        for part in (0, 1):
            found = np.concatenate(target.rows(layer, part, 0, 100)).reshape(-1, 2, 8)
            assert np.array_equal(found, expected(data, layer, scores, 100)[part])


@pytest.mark.parametrize("tokens", [1, 10, FIRST + LAST])
def test_short_prompts_arrive_whole(make_pair, tokens: int) -> None:
    """Case 32: nothing to leave out, and nothing in the payload but the raw bytes."""
    data, target = tensors(tokens), tensors(tokens, seed=2)
    result = move(make_pair(), ContiguousKv(LAYOUT, data), ContiguousKv(LAYOUT, target), tokens)
    assert isinstance(result, LoadResult)
    assert (result.kept_tokens, result.wire_bytes) == (None, result.raw_bytes)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(data, target, strict=True))


class Shifting(Relay):
    """Says of one chunk that one token fewer was kept before it."""

    def _deliver(self, filled: Filled) -> None:
        if filled.sequence == 4:
            payload = np.frombuffer(self._prefill.ring.slot_payload(filled.slot), np.uint8)
            payload[:4].view("<u4")[:] -= 1
        super()._deliver(filled)


def test_tokens_in_another_place_are_never_taken_for_a_load(make_pair) -> None:
    target = [np.zeros((2, 150, 2, 8), np.uint16) for _ in range(LAYERS)]
    pair = make_pair(integrity=Integrity.HEADER)
    result = move(pair, ContiguousKv(LAYOUT, tensors(300)), ContiguousKv(LAYOUT, target), 300, Shifting)
    assert isinstance(result, TransferFailed)
    assert result.reason is Reason.CORRUPT


class Refusing(Relay):
    def _deliver(self, filled: Filled) -> None:
        with pytest.raises(AssertionError):
            super()._deliver(filled)


@pytest.mark.parametrize("decode", [Method.SPARSE75, Method.NONE])
def test_a_chunk_of_another_method_is_not_written(make_pair, decode: Method) -> None:
    """As in the middle of a change of method, were the handshake to let it pass."""
    target = [np.zeros((2, 300, 2, 8), np.uint16) for _ in range(LAYERS)]
    result = move(make_pair(decode), ContiguousKv(LAYOUT, tensors(300)), ContiguousKv(LAYOUT, target), 300, Refusing)
    assert isinstance(result, TransferFailed)
    assert not any(tensor.any() for tensor in target)


@pytest.mark.parametrize("method", [Method.SPARSE50, Method.SPARSE75])
def test_a_chunk_that_only_just_holds_a_token_is_refused_with_the_size_that_is_needed(
    tmp_path: Path, method: Method
) -> None:
    """A payload also says which tokens it keeps. What the message names is enough, and nothing less is."""
    layout = KvLayout(2, 0, (LayerShape(2, 8, 128, KvDtype.BF16), LayerShape(2, 2, 8, KvDtype.BF16)))

    def check(chunk_bytes: int) -> None:
        HostAgent(tmp_path, Role.PREFILL, transfer_config(method=method, chunk_bytes=chunk_bytes)).check(layout)

    with pytest.raises(
        LayoutError, match=r"4096 bytes.*set transfer\.overlap\.chunkBytes to at least (\d+)"
    ) as refused:
        check(4096)
    needed = int(str(refused.value).rsplit(" ", 1)[1])
    check(needed)
    with pytest.raises(LayoutError):
        check(needed - 1)
    config = transfer_config(method=method, keep_exact_first=FIRST, keep_exact_last=LAST)
    tensors = [np.zeros((2, 100, shape.heads, shape.head_dim), np.uint16) for shape in layout.shapes]
    budget = Budget(SPARSE[method.value], FIRST, LAST)
    eviction = Eviction(budget, layout, ContiguousKv(layout, tensors), 100)
    send = Send(transfer_params("prefill"), eviction, 100, layout, config, False, False, Outcomes(), lambda send: None)
    for layer in layout.layers:
        send.layer_final(layer, 0, 100)
    with pytest.raises(LayoutError, match=f"at least {needed}"):
        send.new_chunks(4096)
    assert sum(chunk.token_stop - chunk.token_start for chunk in send.new_chunks(needed)[0].chunks) == 200


def test_what_cannot_be_sparse_is_refused_by_name_before_any_byte(tmp_path: Path) -> None:
    """Case 29: opaque rows, an engine that cannot evict, a load that begins within a prompt."""
    config = transfer_config(method=Method.SPARSE50)
    packed = KvLayout(1, 0, (LayerShape(2, 2, 68, KvDtype.UINT8),))
    with pytest.raises(CodecRefused, match=r"sparse50: opaque bytes \(uint8\)"):
        HostAgent(tmp_path, Role.PREFILL, config).start(packed, {}, lambda: 0.0)
    for engine in ("vllm", "custom"):
        with pytest.raises(SettingsError, match="sparse50: this engine cannot take it"):
            HostAgent(tmp_path, Role.PREFILL, config, methods=engines.METHODS[engine])
    agent = HostAgent(tmp_path, Role.DECODE, config, methods=engines.METHODS["reference"])
    try:
        agent.start(LAYOUT, {}, lambda: 0.0)
        with pytest.raises(LayoutError, match="whole prompts"):
            agent.fetch(transfer_params("decode"), ContiguousKv(LAYOUT, tensors(40)), 16, 40, Outcomes())
    finally:
        agent.close(5.0)
