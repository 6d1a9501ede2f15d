"""Offers of some of the layers that a pod holds: what the sidecar is told of each, and what the engine may say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eventually import eventually
from kv_settings import Outcomes, transfer_config, transfer_params
from kvferry_contract.config import OverlapMode, Role
from kvferry_runtime.agent.base import SendHandle
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape
from kvferry_runtime.ring.messages import (
    Chosen,
    ChunksReady,
    Fetch,
    Fill,
    Filled,
    ManifestLayer,
    Offer,
    SealOffer,
    Sent,
)
from kvferry_runtime.trace.events import Phase
from kvferry_runtime.trace.recorder import Recorder
from kvferry_runtime.wire.data import DataHeader
from scripted_sidecar import ScriptedSidecar

TOKENS = 20
WIDE, NARROW = LayerShape(2, 2, 16, KvDtype.BF16), LayerShape(2, 1, 16, KvDtype.BF16)
MODEL = [WIDE] * 5 + [NARROW] * 5
HELD = range(3, 8)
LAYOUT = KvLayout.stage(MODEL, HELD)
LAYER_SECONDS = 0.004


class Resumable(ContiguousKv):
    resume_tokens = 4


class Stage:
    """The agent of a pod with layers 3 to 7, and its scripted sidecar."""

    def __init__(self, folder: Path, role: Role, recorder: Recorder | None = None, **changes: Any) -> None:
        self.sidecar = ScriptedSidecar(folder)
        self.agent = HostAgent(folder, role, transfer_config(**changes), recorder=recorder)
        self.agent.start(LAYOUT, {}, lambda: 0.0)
        self.sidecar.attach()
        eventually(lambda: self.agent.state().attached, "attached")
        tensors = [np.full((2, TOKENS, LAYOUT.shape(layer).heads, 16), layer, np.uint16) for layer in HELD]
        self.memory = Resumable(LAYOUT, tensors)

    def offer(self, number: int, layers: range | None) -> tuple[SendHandle, Offer, Outcomes]:
        done = Outcomes()
        send = self.agent.offer(transfer_params("prefill", number), self.memory, TOKENS, done, layers)
        return send, self.sidecar.expect(Offer), done

    def finish(self, offer: Offer) -> tuple[list[DataHeader], SealOffer]:
        """Fill every chunk that is announced, then commit."""
        sequences: list[int] = []
        while isinstance(message := self.sidecar.receive(), ChunksReady):
            sequences += [chunk.sequence for chunk in message.chunks]
        assert isinstance(message, SealOffer)
        headers = []
        for sequence in sequences:
            self.sidecar.send(Fill(offer.transfer_id, 0, sequence, 0))
            self.sidecar.expect(Filled)
            headers.append(DataHeader.unpack(self.sidecar.ring.slot_header(0)))
        self.sidecar.send(Sent(offer.transfer_id, True, "", ""))
        return headers, message

    def close(self) -> None:
        self.agent.close(5.0)
        self.sidecar.die()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    opened: list[Stage] = []

    def open_stage(role: Role = Role.PREFILL, **changes: Any) -> Stage:
        opened.append(Stage(tmp_path, role, **changes))
        return opened[-1]

    yield open_stage
    for item in opened:
        item.close()


@pytest.mark.parametrize("overlap", [OverlapMode.LAYERWISE, OverlapMode.REQUEST])
def test_each_offer_has_its_own_layers_and_no_others(stage: Callable[..., Stage], overlap: OverlapMode) -> None:
    """Case 36. Over the same memory; in the manifest, in the chunks, in what is estimated."""
    end = stage(overlap=overlap)
    for number, layers in ((1, range(3, 6)), (2, range(6, 8))):
        send, offer, done = end.offer(number, layers)
        assert offer.layers == layers
        assert offer.estimated_bytes == TOKENS * sum(MODEL[layer].bytes_per_token for layer in layers)
        for layer in layers:
            send.layer_final(layer, 0, TOKENS)
        send.seal(5)
        headers, seal = end.finish(offer)
        assert done.wait() is None
        brought = [layer for header in headers for layer in range(header.layer, header.layer + header.layer_count)]
        assert sorted(set(brought)) == list(layers)
        assert sum(header.raw_bytes for header in headers) == offer.estimated_bytes
        assert seal.layers == [ManifestLayer(layer, TOKENS, brought.count(layer)) for layer in layers]


def test_without_a_word_all_layers_are_offered(stage: Callable[..., Stage]) -> None:
    assert stage().offer(1, None)[1].layers == HELD


@pytest.mark.parametrize("layers", [range(2, 4), range(7, 9), range(10), range(5, 5), range(3, 8, 2)], ids=str)
def test_layers_that_are_not_held_here_are_refused_with_both_ranges(stage: Callable[..., Stage], layers: range) -> None:
    end, done = stage(), Outcomes()
    with pytest.raises(LayoutError, match="this pod holds layers 3 to 7"):
        end.agent.offer(transfer_params("prefill"), end.memory, TOKENS, done, layers)
    assert (end.agent.state().open_sends, done.calls) == (0, 0)


@pytest.mark.parametrize("layer", [3, 5, 2, 8])
def test_a_layer_outside_of_the_offer_is_refused(stage: Callable[..., Stage], layer: int) -> None:
    send, _, _ = stage().offer(1, range(6, 8))
    with pytest.raises(LayoutError, match=r"offered are range\(6, 8\)"):
        send.layer_final(layer, 0, TOKENS)


def test_what_a_pass_takes_is_told_as_each_offer_sees_it(stage: Callable[..., Stage]) -> None:
    """The first layers are there early and have the rest of the pass to hide behind; the last ones come late."""
    end = stage(overlap=OverlapMode.AUTO)
    for number in (1, 3, 5):
        (early, one, _), (late, two, _) = end.offer(number, range(3, 6)), end.offer(number + 1, range(6, 8))
        for layer in HELD:
            time.sleep(LAYER_SECONDS)
            (early if layer < 6 else late).layer_final(layer, 0, TOKENS)
        for send, offer in ((early, one), (late, two)):
            send.seal(5)
            end.sidecar.send(Chosen(offer.transfer_id, layerwise=False, exact_apart=False))
            end.finish(offer)
    layer_us = LAYER_SECONDS * 1e6
    assert one.compute_us >= 5 * layer_us and one.tail_us >= 2 * layer_us
    assert two.compute_us >= 2 * layer_us and two.tail_us == 0


def test_an_engine_that_computes_one_thing_after_the_other_is_drawn_so(stage: Callable[..., Stage]) -> None:
    """Layers of the second offer are not taken for computed since it was made."""
    recorder = Recorder("prefill")
    end = stage(recorder=recorder)
    (early, one, _), (late, two, _) = end.offer(1, range(3, 6)), end.offer(2, range(6, 8))
    for layer in HELD:
        time.sleep(LAYER_SECONDS)
        (early if layer < 6 else late).layer_final(layer, 0, TOKENS)
    early.seal(5)
    late.seal(5)
    computed = [event for event in recorder.trace().events if event.phase is Phase.COMPUTED]
    assert [event.layer for event in computed] == [*HELD, HELD[-1]], "the end of the pass is the last layer's"
    assert [event.transfer for event in computed] == [one.transfer_id] * 3 + [two.transfer_id] * 3
    assert all(before.ended_ns == after.began_ns for before, after in pairwise(computed))


@pytest.mark.parametrize("total", [len(HELD), len(MODEL)])
def test_only_a_pod_with_the_whole_model_can_do_with_less(tmp_path: Path, total: int) -> None:
    """Two stages could be cut short at different places."""
    first = HELD.start if total > len(HELD) else 0
    layout = KvLayout(total, first, LAYOUT.shapes)
    with ScriptedSidecar(tmp_path) as sidecar:
        agent = HostAgent(tmp_path, Role.DECODE, transfer_config())
        agent.start(layout, {}, lambda: 0.0)
        sidecar.attach()
        eventually(lambda: agent.state().attached, "attached")
        tensors = [np.zeros((2, TOKENS, shape.heads, 16), np.uint16) for shape in layout.shapes]
        agent.fetch(transfer_params("decode"), Resumable(layout, tensors), 0, TOKENS, Outcomes())
        assert sidecar.expect(Fetch).resume_tokens == (4 if total == len(HELD) else 0)
        agent.close(5.0)
