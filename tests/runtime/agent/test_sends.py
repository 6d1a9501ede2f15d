"""What the sidecar is told about an offered transfer, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eventually import eventually
from kv_settings import Outcomes, kv_layout, transfer_config, transfer_params
from kvferry_contract.config import Integrity, Method, OverlapMode, Role
from kvferry_runtime.agent import sends, transfers
from kvferry_runtime.agent.base import SendHandle
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.errors import LayoutError, Reason
from kvferry_runtime.layout import KvLayout
from kvferry_runtime.plan import Chunk, request_chunks
from kvferry_runtime.ring.messages import (
    Cancel,
    Chosen,
    ChunksReady,
    Fill,
    Filled,
    ManifestLayer,
    Offer,
    SealOffer,
    Sent,
)
from kvferry_runtime.wire.data import DataHeader
from scripted_sidecar import ScriptedSidecar

TOKENS = 100
LAYOUT = kv_layout(3, head_dim=32)
ID = transfer_params("prefill").transfer_id
BF16_ONE, BF16_NAN = 0x3F80, 0x7FC0


class Sender:
    """One prefill agent with a scripted sidecar and one offered transfer at a time."""

    def __init__(self, folder: Path, layout: KvLayout = LAYOUT, **changes: Any) -> None:
        self.layout = layout
        self.sidecar = ScriptedSidecar(folder)
        self.agent = HostAgent(folder, Role.PREFILL, transfer_config(**changes))
        self.agent.start(layout, {}, lambda: 0.0)
        self.sidecar.attach()
        eventually(lambda: self.agent.state().attached, "attached")
        self.tensors = [
            np.full((2, TOKENS, shape.heads, shape.head_dim), BF16_ONE, np.uint16) for shape in layout.shapes
        ]
        self.done = Outcomes()

    def offer(self, tokens: int = TOKENS) -> SendHandle:
        memory = ContiguousKv(self.layout, self.tensors)
        return self.agent.offer(transfer_params("prefill"), memory, tokens, self.done)

    def offer_announced(self) -> SendHandle:
        offer = self.offer()
        self.sidecar.expect(Offer)
        return offer

    def finish(self, offer: SendHandle, tokens: int = TOKENS) -> tuple[list[DataHeader], SealOffer]:
        """Compute all layers at once, fill every chunk, commit."""
        for layer in self.layout.layers:
            offer.layer_final(layer, 0, tokens)
        offer.seal(11)
        sequences: list[int] = []
        while isinstance(message := self.sidecar.receive(), ChunksReady):
            sequences += [chunk.sequence for chunk in message.chunks]
        assert isinstance(message, SealOffer)
        headers = [self.fill(sequence) for sequence in sequences]
        self.sidecar.send(Sent(ID, True, "", ""))
        assert self.done.wait() is None
        return headers, message

    def fill(self, sequence: int) -> DataHeader:
        self.sidecar.send(Fill(ID, 0, sequence, 0))
        filled = self.sidecar.expect(Filled)
        header = DataHeader.unpack(self.sidecar.ring.slot_header(0))
        assert (filled.sequence, filled.raw_bytes, filled.wire_bytes, filled.digest) == (
            header.sequence,
            header.raw_bytes,
            header.wire_bytes,
            header.digest,
        )
        return header

    def close(self) -> None:
        self.agent.close(5.0)
        self.sidecar.die()


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Callable[..., Sender]]:
    opened: list[Sender] = []

    def open_sender(**changes: Any) -> Sender:
        opened.append(Sender(tmp_path, **changes))
        return opened[-1]

    yield open_sender
    for item in opened:
        item.close()


def covered(headers: list[DataHeader]) -> dict[int, list[tuple[int, int]]]:
    ranges: dict[int, list[tuple[int, int]]] = {}
    for header in headers:
        for layer in range(header.layer, header.layer + header.layer_count):
            ranges.setdefault(layer, []).append((header.token_start, header.token_stop))
    return {layer: sorted(found) for layer, found in ranges.items()}


@pytest.mark.parametrize("mode", [OverlapMode.LAYERWISE, OverlapMode.REQUEST, OverlapMode.AUTO])
@pytest.mark.parametrize("tokens", [1, 63, TOKENS])
def test_every_row_is_announced_once_and_the_seal_says_so(
    sender: Callable[..., Sender], mode: OverlapMode, tokens: int
) -> None:
    end = sender(overlap=mode)
    offer = end.offer(tokens)
    announced = end.sidecar.expect(Offer)
    assert (announced.tokens, announced.codec) == (tokens, "none")
    assert announced.layerwise is {"auto": None, "layerwise": True, "request": False}[mode]
    if announced.layerwise is None:
        end.sidecar.send(Chosen(ID, layerwise=tokens == TOKENS, exact_apart=False))
    headers, seal = end.finish(offer, tokens)
    assert [header.sequence for header in headers] == list(range(seal.chunks))
    for found in covered(headers).values():
        assert [start for start, _ in found] == [0, *(stop for _, stop in found[:-1])]
        assert found[-1][1] == tokens
    assert sum(header.raw_bytes for header in headers) == announced.estimated_bytes
    chunks = {layer: len(found) for layer, found in covered(headers).items()}
    assert seal.layers == [ManifestLayer(layer, tokens, chunks[layer]) for layer in LAYOUT.layers]
    assert seal.first_token == 11
    assert 0 < seal.compute_started_ns <= seal.compute_finished_ns


def test_a_layer_is_announced_as_soon_as_it_is_final(sender: Callable[..., Sender]) -> None:
    end = sender()
    offer = end.offer()
    end.sidecar.expect(Offer)
    for layer, start, stop in [(1, 0, 10), (0, 0, 5), (1, 10, 12)]:
        offer.layer_final(layer, start, stop)
        (chunk,) = end.sidecar.expect(ChunksReady).chunks
        header = end.fill(chunk.sequence)
        assert (header.layer, header.token_start, header.token_stop) == (layer, start, stop)


def test_nothing_is_announced_before_the_seal_in_request_mode(sender: Callable[..., Sender]) -> None:
    end = sender(overlap=OverlapMode.REQUEST)
    offer = end.offer()
    end.sidecar.expect(Offer)
    for layer in LAYOUT.layers:
        offer.layer_final(layer, 0, TOKENS)
    with pytest.raises(LayoutError, match="cannot be next"):
        offer.layer_final(0, 0, TOKENS)
    end.sidecar.send(Fill(ID, 0, 0, 0))
    assert end.sidecar.expect(Filled).wire_bytes == 0


@pytest.mark.parametrize("mode", OverlapMode)
def test_a_prompt_of_no_tokens_is_refused_and_harms_nobody(sender: Callable[..., Sender], mode: OverlapMode) -> None:
    end = sender(overlap=mode)
    offer = end.offer()
    end.sidecar.expect(Offer)
    for tokens in (0, -1):
        with pytest.raises(LayoutError, match="at least 1"):
            end.offer(tokens)
    assert end.agent.state().open_sends == 1
    if mode is OverlapMode.AUTO:
        end.sidecar.send(Chosen(ID, layerwise=True, exact_apart=False))
    end.finish(offer)


def test_a_plan_that_fails_ends_its_transfer_alone(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    end = sender(overlap=OverlapMode.REQUEST)
    other, done = end.offer_announced(), Outcomes()
    monkeypatch.setattr(sends, "request_chunks", lambda *args, **kwargs: 1 // 0)
    memory = ContiguousKv(end.layout, end.tensors)
    offer = end.agent.offer(transfer_params("prefill", 2), memory, TOKENS, done)
    end.sidecar.expect(Offer)
    for layer in LAYOUT.layers:
        offer.layer_final(layer, 0, TOKENS)
    offer.seal(1)
    failure = done.wait()
    assert failure.reason is Reason.INTERNAL and "ZeroDivisionError" in str(failure)
    assert end.sidecar.expect(Cancel).transfer_id == transfer_params("prefill", 2).transfer_id
    assert [record.exc_info is not None for record in caplog.records if record.name == transfers.__name__] == [True]
    monkeypatch.undo()
    end.finish(other)


class Watched:
    """A chunk that counts how often something looks at which layers it holds."""

    looks = 0

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk

    def __getattr__(self, name: str) -> Any:
        Watched.looks += name == "layer_count"
        return getattr(self._chunk, name)


def test_each_chunk_is_counted_once_however_many_bands_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each band has a manifest of all that came before it."""

    def watched(*args: Any, **kwargs: Any) -> list[Watched]:
        return [Watched(chunk) for chunk in request_chunks(*args, **kwargs)]

    monkeypatch.setattr(sends, "request_chunks", watched)
    tokens, done = 640, Outcomes()
    config = transfer_config(method=Method.AUTO, overlap=OverlapMode.AUTO)
    memory = ContiguousKv(LAYOUT, [np.zeros((2, tokens, 2, 32), np.uint16)] * len(LAYOUT.shapes))
    send = sends.Send(transfer_params("prefill"), memory, tokens, LAYOUT, config, True, True, done, lambda send: None)
    for layer in LAYOUT.layers:
        send.layer_final(layer, 0, tokens)
    send.seal(1)
    send.choose(sends.Cutting(layerwise=False, exact_apart=False, band_tokens=10))
    Watched.looks = 0
    bands = send.new_chunks(4096)
    seal = send.take_seal()
    assert seal is not None and len(bands) == 64
    assert Watched.looks == seal.chunks == sum(len(band.chunks) for band in bands)
    for number, band in enumerate(bands[:-1], 1):
        assert band.cut is not None and (band.cut.tokens, band.cut.layers[0].chunks) == (10 * number, number)


@pytest.mark.parametrize(("layer", "start", "stop"), [(0, 1, 5), (0, 0, TOKENS + 1), (0, 5, 4), (3, 0, 5), (-1, 0, 5)])
def test_ranges_that_do_not_follow_each_other(sender: Callable[..., Sender], layer: int, start: int, stop: int) -> None:
    offer = sender().offer()
    with pytest.raises(LayoutError, match="cannot be next"):
        offer.layer_final(layer, start, stop)


def test_a_seal_before_everything_is_final(sender: Callable[..., Sender]) -> None:
    offer = sender().offer()
    offer.layer_final(1, 0, TOKENS)
    offer.layer_final(2, 0, TOKENS - 1)
    with pytest.raises(LayoutError, match=r"not all are final in layers \[0, 2\]"):
        offer.seal(1)


def test_the_engine_never_waits_for_a_sidecar_that_does_not_read(sender: Callable[..., Sender]) -> None:
    """Case 35: thousands of announcements, nobody reads a packet; the pass goes on, the request can be dropped."""
    end = sender()
    for number in range(300):
        done = Outcomes()
        memory = ContiguousKv(LAYOUT, end.tensors)
        offer = end.agent.offer(transfer_params("prefill", number), memory, TOKENS, done)
        for token in range(0, TOKENS, 10):
            for layer in LAYOUT.layers:
                offer.layer_final(layer, token, token + 10)
        offer.seal(1)
        offer.cancel("dropped")
        done.wait()
    assert end.agent.state().open_sends == 0


@pytest.mark.parametrize("method", [Method.INT8, Method.FP8])
def test_a_lossy_method_leaves_first_and_last_tokens_exact(sender: Callable[..., Sender], method: Method) -> None:
    end = sender(method=method)
    offer = end.offer()
    assert end.sidecar.expect(Offer).codec == method.value
    headers, _ = end.finish(offer)
    for header in headers:
        exact = header.token_stop <= 16 or header.token_start >= TOKENS - 64
        assert (header.codec == 0) is exact
        assert (header.wire_bytes == header.raw_bytes) is exact
        assert header.scale_scope == (0 if exact else 1)


def test_a_chunk_with_a_value_that_cannot_be_encoded_goes_exactly(sender: Callable[..., Sender]) -> None:
    end = sender(method=Method.INT8, keep_exact_first=0, keep_exact_last=0)
    end.tensors[1][0, 0, 0, 0] = BF16_NAN
    headers, _ = end.finish(end.offer_announced())
    assert {header.layer: header.codec for header in headers if header.token_start == 0} == {0: 1, 1: 0, 2: 1}


def test_a_method_that_gains_nothing_is_not_used(tmp_path: Path) -> None:
    """Rows of two values: scale and values of int8 would be larger than bf16."""
    end = Sender(tmp_path, kv_layout(1, head_dim=2), method=Method.INT8, keep_exact_first=0, keep_exact_last=0)
    headers, _ = end.finish(end.offer_announced())
    assert {header.codec for header in headers} == {0}
    end.close()


def test_without_digests_the_header_has_none(sender: Callable[..., Sender]) -> None:
    end = sender(integrity=Integrity.HEADER)
    headers, _ = end.finish(end.offer_announced())
    assert {header.digest for header in headers} == {0}
