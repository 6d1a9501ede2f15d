"""What the agent tells the sidecar to choose by, and that it does what was chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eventually import eventually
from kv_settings import Outcomes, kv_layout, transfer_config, transfer_params
from kvferry_contract.config import Method, OverlapMode, Role
from kvferry_runtime.agent.base import SendHandle
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.codec.registry import METHODS
from kvferry_runtime.layout import KvDtype
from kvferry_runtime.ring.messages import Chosen, ChunksReady, Cut, Fill, Filled, Offer, SealOffer, Sent
from kvferry_runtime.wire.data import DataHeader
from scripted_sidecar import ScriptedSidecar

TOKENS = 256
CHUNK = 16 * 1024
PARAMS = transfer_params("prefill")
ID = PARAMS.transfer_id


class Prefill:
    """An agent with a scripted sidecar. What is read of chunks is kept by sequence."""

    def __init__(self, folder: Path, head_dim: int = 32, dtype: KvDtype = KvDtype.BF16, **changes: Any) -> None:
        self.layout = kv_layout(3, head_dim=head_dim, dtype=dtype)
        self.sidecar = ScriptedSidecar(folder, chunk_bytes=CHUNK)
        defaults = {"method": Method.AUTO, "overlap": OverlapMode.AUTO, "chunk_bytes": CHUNK}
        self.agent = HostAgent(folder, Role.PREFILL, transfer_config(**(defaults | changes)))
        self.agent.start(self.layout, {}, lambda: 0.0)
        self.sidecar.attach()
        eventually(lambda: self.agent.state().attached, "attached")
        generator = np.random.default_rng(3)
        shape = (2, TOKENS, 2, head_dim)
        self.tensors = [
            (generator.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
            for _ in self.layout.shapes
        ]
        self.done = Outcomes()

    def offer(self) -> tuple[SendHandle, Offer]:
        handle = self.agent.offer(PARAMS, ContiguousKv(self.layout, self.tensors), TOKENS, self.done)
        return handle, self.sidecar.expect(Offer)

    def compute(self, handle: SendHandle) -> None:
        for layer in self.layout.layers:
            handle.layer_final(layer, 0, TOKENS)
        handle.seal(5)

    def announced(self) -> list[int]:
        sequences: list[int] = []
        while isinstance(message := self.sidecar.receive(), ChunksReady):
            sequences += [chunk.sequence for chunk in message.chunks]
        assert isinstance(message, SealOffer)
        return sequences

    def fill(self, sequence: int, codec: str) -> tuple[DataHeader, Filled]:
        self.sidecar.send(Fill(ID, 0, sequence, 0, codec))
        filled = self.sidecar.expect(Filled)
        return DataHeader.unpack(self.sidecar.ring.slot_header(0)), filled

    def commit(self) -> None:
        self.sidecar.send(Sent(ID, True, "", ""))
        assert self.done.wait() is None

    def close(self) -> None:
        self.agent.close(5.0)
        self.sidecar.die()


@pytest.fixture
def prefill(tmp_path: Path) -> Iterator[Callable[..., Prefill]]:
    opened: list[Prefill] = []

    def open_prefill(**changes: Any) -> Prefill:
        folder = tmp_path / str(len(opened))
        folder.mkdir()
        opened.append(Prefill(folder, **changes))
        return opened[-1]

    yield open_prefill
    for item in opened:
        item.close()


def test_the_offer_says_how_fast_each_allowed_method_is(prefill: Callable[..., Prefill]) -> None:
    handle, offer = prefill(auto_methods=(Method.FP8, Method.INT8)).offer()
    assert (offer.codec, offer.layerwise, offer.compute_us) == ("auto", None, 0)
    assert [item.method for item in offer.methods] == ["none", "int8", "fp8"]
    assert all(item.encode > 0 and item.decode > 0 for item in offer.methods)
    assert offer.methods[0].ratio == 1 and 0.5 < offer.methods[1].ratio < 0.7
    handle.cancel("enough")


def test_a_method_that_cannot_carry_the_layout_is_not_offered(prefill: Callable[..., Prefill]) -> None:
    """fp16 values may exceed what a method's scales can hold; bytes of unknown meaning go exact alone."""
    end = prefill(dtype=KvDtype.UINT8, head_dim=64)
    end.tensors = [array.view(np.uint8)[..., :64].copy() for array in end.tensors]
    assert end.offer()[1].methods == []


def test_nothing_is_measured_where_nothing_is_to_be_chosen(prefill: Callable[..., Prefill]) -> None:
    _, offer = prefill(method=Method.INT8, overlap=OverlapMode.REQUEST).offer()
    assert (offer.codec, offer.layerwise, offer.methods) == ("int8", False, [])


@pytest.mark.parametrize("layerwise", [True, False])
def test_chunks_are_cut_when_the_choice_is_known(prefill: Callable[..., Prefill], layerwise: bool) -> None:
    """Even if the whole pass is over by then; layer by layer no chunk holds two layers."""
    end = prefill()
    handle, _ = end.offer()
    end.compute(handle)
    end.sidecar.send(Chosen(ID, layerwise=layerwise, exact_apart=True))
    headers = [end.fill(sequence, "none")[0] for sequence in end.announced()]
    covered = sorted(
        (layer, header.token_start, header.token_stop)
        for header in headers
        for layer in range(header.layer, header.layer + header.layer_count)
    )
    assert sum(stop - start for _, start, stop in covered) == 3 * TOKENS
    assert {header.token_start for header in headers} >= {0, 16, TOKENS - 64}
    assert layerwise is not any(header.layer_count > 1 for header in headers)
    end.commit()


def test_each_chunk_goes_by_the_method_that_is_asked_for(prefill: Callable[..., Prefill]) -> None:
    end = prefill(keep_exact_first=0, keep_exact_last=0)
    handle, _ = end.offer()
    end.compute(handle)
    end.sidecar.send(Chosen(ID, layerwise=True, exact_apart=True))
    methods = ["none", "int8", "fp8"]
    for sequence in end.announced():
        header, _ = end.fill(sequence, methods[sequence % 3])
        assert header.codec == METHODS[methods[sequence % 3]]
    end.commit()


@pytest.mark.parametrize("apart", [True, False])
def test_first_and_last_tokens_stay_exact_whatever_is_asked_for(prefill: Callable[..., Prefill], apart: bool) -> None:
    """Where they share a chunk with others, all of it is exact."""
    end = prefill()
    handle, _ = end.offer()
    end.compute(handle)
    end.sidecar.send(Chosen(ID, layerwise=True, exact_apart=apart))
    headers = [end.fill(sequence, "int8")[0] for sequence in end.announced()]
    for header in headers:
        if header.token_start < 16 or header.token_stop > TOKENS - 64:
            assert header.codec == METHODS["none"]
    assert any(header.codec == METHODS["int8"] for header in headers)
    assert (len(headers) > 2 * 3 * 2) is apart
    end.commit()


def test_the_next_offer_knows_how_long_a_pass_takes(prefill: Callable[..., Prefill]) -> None:
    end = prefill()
    handle, _ = end.offer()
    end.compute(handle)
    end.sidecar.send(Chosen(ID, layerwise=False, exact_apart=True))
    end.announced()
    end.commit()
    handle, offer = end.offer()
    assert offer.compute_us > 0


def test_a_layer_whose_error_is_too_large_goes_exact_from_then_on(
    prefill: Callable[..., Prefill], caplog: pytest.LogCaptureFixture
) -> None:
    """The chunk that showed it does not leave with the error either. Said once."""
    end = prefill(method=Method.INT8, overlap=OverlapMode.LAYERWISE, max_relative_error=1e-6, keep_exact_first=0)
    handle, _ = end.offer()
    end.compute(handle)
    headers: dict[int, list[int]] = {}
    checks = []
    for sequence in end.announced():
        header, filled = end.fill(sequence, "int8")
        headers.setdefault(header.layer, []).append(header.codec)
        checks += [filled.check] if filled.check is not None else []
    assert set(headers[0]) == {METHODS["none"]}
    assert METHODS["int8"] in headers[1]
    assert [(check.method, check.failed) for check in checks] == [("int8", True)]
    assert checks[0].relative_error > 1e-6
    assert [record.levelname for record in caplog.records if "maxRelativeError" in record.message] == ["WARNING"]
    end.commit()


@pytest.mark.parametrize("layerwise", [True, False])
def test_places_at_which_the_transfer_could_end(prefill: Callable[..., Prefill], layerwise: bool) -> None:
    """All layers of 96 tokens, then of the next 96, each place with the manifest of what comes before it."""
    end = prefill()
    handle, _ = end.offer()
    end.sidecar.send(Chosen(ID, layerwise=layerwise, exact_apart=True, band_tokens=96))
    cuts: list[Cut] = []
    sequences: list[int] = []

    def hear(message: ChunksReady) -> None:
        sequences.extend(chunk.sequence for chunk in message.chunks)
        if message.cut is not None:
            assert message.cut.chunks == len(sequences)
            cuts.append(message.cut)

    for start in range(0, TOKENS, 96):
        for layer in end.layout.layers:
            handle.layer_final(layer, start, min(start + 96, TOKENS))
        if layerwise and start + 96 < TOKENS:  # before the engine goes on, what is final by then is announced
            while not cuts or cuts[-1].tokens < start + 96:
                hear(end.sidecar.expect(ChunksReady))
    handle.seal(5)
    while isinstance(message := end.sidecar.receive(), ChunksReady):
        hear(message)
    assert isinstance(message, SealOffer)
    headers = [end.fill(sequence, "none")[0] for sequence in sequences]
    assert [cut.tokens for cut in cuts] == [96, 192]
    for cut in cuts:
        before = headers[: cut.chunks]
        assert max(header.token_stop for header in before) == cut.tokens
        for item in cut.layers:
            parts = [h for h in before if h.layer <= item.layer < h.layer + h.layer_count]
            assert item.tokens == sum(h.token_stop - h.token_start for h in parts) == cut.tokens
            assert item.chunks == len(parts)
    end.commit()
