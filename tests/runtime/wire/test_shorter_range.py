"""A transfer that is ended early: P seals fewer tokens than were asked for, D commits those and no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvferry_runtime.errors import Reason
from kvferry_runtime.layout import KvDtype
from kvferry_runtime.wire.coverage import Coverage
from kvferry_runtime.wire.credits import SendCredits
from kvferry_runtime.wire.data import DataHeader
from kvferry_runtime.wire.effects import Effect, Finished, Tell, Transmit
from kvferry_runtime.wire.messages import Ack, Commit, Open, Reserve, Seal, SealLayer
from kvferry_runtime.wire.outgoing import Manifest, Offered, SendState, Work
from kvferry_runtime.wire.receiver import IncomingTransfer, ReceiveState, Wanted
from kvferry_runtime.wire.sender import OutgoingTransfer

ID = "ab" * 16
BAND, BANDS, LAYERS = 4, 3, range(2, 5)
TOKENS = BAND * BANDS
CHUNK = BAND * 32


def manifest(bands: int) -> Manifest:
    layers = tuple(SealLayer(layer, bands * BAND, bands) for layer in LAYERS)
    return Manifest(bands * len(LAYERS), layers, first_token=5)


def header(sequence: int) -> DataHeader:
    """Tokens first: all layers of one band, then of the next."""
    band, layer = divmod(sequence, len(LAYERS))
    return DataHeader(
        transfer_id=ID, generation=0, sequence=sequence, layer=LAYERS[layer], layer_count=1, parts=2, codec=0,
        token_start=band * BAND, token_stop=(band + 1) * BAND, head_stop=1, head_dim=8, dtype=KvDtype.BF16,
        scale_scope=0, raw_bytes=CHUNK, wire_bytes=CHUNK, digest=sequence,
    )  # fmt: skip


def shorten(machine: OutgoingTransfer, bands: int) -> list[Effect]:
    wanted = manifest(bands)
    return machine.shortened(wanted.chunks, wanted.layers)


def told(effects: list[Effect], kind: type[Any]) -> Any:
    [message] = [item.message for item in effects if isinstance(item, Tell) and isinstance(item.message, kind)]
    return message


def sealed(chunks: int) -> Manifest:
    """Of the whole prompt, in so many chunks."""
    return Manifest(chunks, manifest(BANDS).layers, first_token=5)


def reserve(generation: int = 0, resume: int = BAND, codecs: Sequence[str] = ("none",)) -> Reserve:
    return Reserve(ID, generation, LAYERS.start, len(LAYERS), 0, TOKENS, list(codecs), 1000, resume)


def sender(resume: int = BAND) -> OutgoingTransfer:
    machine = OutgoingTransfer(Offered(ID, LAYERS, TOKENS, BANDS * len(LAYERS) * CHUNK, True, 100.0, 0))
    credits = SendCredits()
    credits.grant(100)
    machine.announced(0, [CHUNK] * (BANDS * len(LAYERS)), 0.0)
    machine.reserve("d", reserve(resume=resume), credits, True, "none")
    return machine


def send(machine: OutgoingTransfer, chunks: int) -> list[Effect]:
    effects: list[Effect] = []
    for slot in range(chunks):
        machine.fill(slot)
        effects += machine.filled(slot, slot, CHUNK, CHUNK, slot, 0.0)
    return effects


def receiver(resume: int = BAND, peers: tuple[str, ...] = ("p",)) -> IncomingTransfer:
    machine = IncomingTransfer(Wanted(ID, peers, LAYERS, 0, TOKENS, ("none",), 100.0, 0, resume))
    machine.start()
    for peer in peers:
        machine.connected(peer, 0.0)
    machine.opened(peers[0], Open(ID, 0, LAYERS.start, len(LAYERS), 0, "none", True), 0.0)
    return machine


def take(machine: IncomingTransfer, chunks: int) -> None:
    for sequence in range(chunks):
        machine.arrived("p", header(sequence), 0.0)
        machine.consumed("p", 0, sequence, True, 0.0)


def seal(bands: int) -> Seal:
    machine = sender()
    machine.sealed(manifest(BANDS), 0.0)
    effects = send(machine, bands * len(LAYERS))
    if bands < BANDS:
        effects += shorten(machine, bands)
    message = told(effects, Seal)
    assert isinstance(message, Seal)
    return message


def test_both_ends_commit_what_was_sent() -> None:
    """P had handed out a chunk of the band in which it ends; that one is still filled and sent."""
    p, d = sender(), receiver()
    p.sealed(manifest(BANDS), 0.0)
    send(p, 4)
    assert shorten(p, 2) == []
    effects: list[Effect] = []
    while p.work() is Work.FILL:
        slot = p.chunks
        p.fill(slot)
        effects += p.filled(slot, slot, CHUNK, CHUNK, slot, 0.0)
    assert p.state is SendState.SEALED and p.chunks == 2 * len(LAYERS)
    take(d, 2 * len(LAYERS))
    committed = d.sealed("p", told(effects, Seal), 0.0)
    assert Finished(None, "") in committed
    assert (d.state, d.tokens, d.chunks) == (ReceiveState.COMMITTED, 2 * BAND, 2 * len(LAYERS))
    for sequence in range(p.chunks):
        p.completed(sequence)
        p.acknowledged(0, sequence)
    assert Finished(None, "") in p.committed(told(committed, Commit), 0.0)


def test_a_shorter_range_may_end_where_nothing_more_is_to_be_sent() -> None:
    """Everything up to the end was sent already: the SEAL goes out at once."""
    p = sender()
    p.sealed(manifest(BANDS), 0.0)
    send(p, len(LAYERS))
    assert told(shorten(p, 1), Seal).chunks == len(LAYERS)
    assert p.work() is None


@pytest.mark.parametrize(
    ("sent", "chunks", "left"), [(0, 3, 3 * CHUNK), (2, 3, CHUNK), (3, 3, 0), (4, 3, None), (9, 9, None)]
)
def test_what_would_still_be_sent(sent: int, chunks: int, left: int | None) -> None:
    """None where a later chunk was handed out, or nothing is left to be saved."""
    p = sender()
    p.sealed(manifest(BANDS), 0.0)
    send(p, sent)
    assert p.waiting_bytes(chunks) == left


@given(
    sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=20),
    batch=st.integers(1, 20),
    sent=st.integers(0, 20),
    chunks=st.integers(0, 25),
)
def test_what_would_still_be_sent_is_the_sum_of_its_chunks(
    sizes: list[int], batch: int, sent: int, chunks: int
) -> None:
    """However they were announced, also in another generation."""
    p = OutgoingTransfer(Offered(ID, LAYERS, TOKENS, sum(sizes), True, 100.0, 1))
    for start in range(0, len(sizes), batch):
        p.announced(start, sizes[start : start + batch], 0.0)
    p.sealed(sealed(len(sizes)), 0.0)
    for generation in range(2):
        credits = SendCredits()
        credits.grant(100)
        p.reserve("d", reserve(generation), credits, True, "none")
        for slot in range(min(sent, len(sizes))):
            p.fill(100 * generation + slot)
        possible = sent <= chunks and sent < len(sizes)
        assert p.waiting_bytes(chunks) == (sum(sizes[sent:chunks]) if possible else None)
    if possible and chunks < len(sizes):
        p.shortened(chunks, ())
        assert p.waiting_bytes(len(sizes)) == (sum(sizes[sent:chunks]) if sent < chunks else None)


class Counted(int):
    """A size that counts how often something was added to it."""

    added = 0

    def __radd__(self, other: int) -> int:
        Counted.added += 1
        return int(self) + other

    __add__ = __radd__


def test_asking_what_would_still_be_sent_touches_no_chunk() -> None:
    """It is asked for every place to end, once a second, on the loop that serves all transfers."""
    p = OutgoingTransfer(Offered(ID, LAYERS, TOKENS, 1, True, 100.0, 0))
    p.announced(0, [Counted(CHUNK)] * 1000, 0.0)
    p.sealed(sealed(1000), 0.0)
    credits = SendCredits()
    p.reserve("d", reserve(), credits, True, "none")
    Counted.added = 0
    assert [p.waiting_bytes(chunks) for chunks in (0, 10, 1000)] == [0, 10 * CHUNK, 1000 * CHUNK]
    assert Counted.added == 0


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({}, False),
        ({"token_stop": TOKENS - 1}, True),
        ({"codecs": ["none"]}, True),
        ({"codecs": ["int8"]}, True),
        ({"generation": 0}, True),
        ({"first_layer": 0, "layer_count": 8}, False),
        ({"first_layer": 3}, True),
        ({"layer_count": 2}, True),
    ],
)
def test_whether_a_reserve_would_be_refused_is_known_before(change: dict[str, Any], refused: bool) -> None:
    """Asking changes nothing, and `reserve` then gives the same answer."""
    p, credits = sender(), SendCredits()
    message = replace(reserve(1, codecs=("none", "int8")), **change)
    answer = p.refusal(message, "int8")
    assert (answer is not None) is refused
    assert (p.generation, p.state) == (0, SendState.OPEN)
    told = [item.message for item in p.reserve("d", message, credits, True, "int8") if isinstance(item, Tell)]
    assert ([answer] == told) is refused and (p.generation == 0) is refused


def test_the_whole_range_is_committed_as_ever() -> None:
    d = receiver()
    take(d, BANDS * len(LAYERS))
    assert Finished(None, "") in d.sealed("p", seal(BANDS), 0.0)
    assert d.tokens == TOKENS


def test_chunks_may_come_after_the_seal() -> None:
    d = receiver()
    take(d, 2)
    assert d.sealed("p", seal(1), 0.0) == []
    d.arrived("p", header(2), 0.0)
    assert Finished(None, "") in d.consumed("p", 0, 2, True, 0.0)
    assert d.tokens == BAND


def layers(*tokens: int) -> list[SealLayer]:
    return [SealLayer(layer, count, 1) for layer, count in zip(LAYERS, tokens, strict=False)]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda m: replace(m, layers=layers(0, 0, 0)), id="no token"),
        pytest.param(lambda m: replace(m, layers=layers(*[TOKENS + BAND] * 3)), id="more than wanted"),
        pytest.param(lambda m: replace(m, layers=layers(3, 3, 3)), id="from where the engine cannot go on"),
        pytest.param(lambda m: replace(m, layers=layers(4, 8, 4)), id="unequal among layers"),
        pytest.param(lambda m: replace(m, layers=layers(4, 4)), id="a layer is missing"),
        pytest.param(lambda m: replace(m, layers=[*layers(4, 4), SealLayer(9, 4, 1)]), id="another layer"),
        pytest.param(lambda m: replace(m, layers=[]), id="no layer"),
    ],
)
def test_a_seal_that_claims_another_range_is_refused(change: Callable[[Seal], Seal]) -> None:
    d = receiver()
    take(d, len(LAYERS))
    effects = d.sealed("p", change(seal(1)), 0.0)
    [end] = [effect for effect in effects if isinstance(effect, Finished)]
    assert end.reason is Reason.CORRUPT
    assert d.state is ReceiveState.FAILED


def test_tokens_behind_the_sealed_range_are_refused() -> None:
    """Whether they came before the SEAL or come after it."""
    before = receiver()
    take(before, len(LAYERS) + 1)
    [end] = [item for item in before.sealed("p", seal(1), 0.0) if isinstance(item, Finished)]
    assert end.reason is Reason.CORRUPT
    after = receiver()
    take(after, 2)
    after.sealed("p", seal(1), 0.0)
    [end] = [item for item in after.arrived("p", header(len(LAYERS)), 0.0) if isinstance(item, Finished)]
    assert end.reason is Reason.CORRUPT


@pytest.mark.parametrize(("resume", "peers"), [(0, ("p",)), (BAND, ("p", "q"))])
def test_a_shorter_range_that_nobody_allowed_is_refused(resume: int, peers: tuple[str, ...]) -> None:
    """Nor is it with two stages, which might end at different places; RESERVE then says so."""
    d = receiver(resume, peers)
    d2 = IncomingTransfer(d.wanted)
    [reserve] = [item.message for item in d2.connected("p", 0.0) if isinstance(item, Tell)]
    assert isinstance(reserve, Reserve) and reserve.resume_tokens == 0
    take(d, len(LAYERS))
    if len(peers) == 1:
        [end] = [item for item in d.sealed("p", seal(1), 0.0) if isinstance(item, Finished)]
        assert end.reason is Reason.CORRUPT
    else:
        assert d.sealed("p", seal(1), 0.0) == []
        assert d.tokens == TOKENS


def test_acks_of_an_earlier_chunk_still_count() -> None:
    p = sender()
    p.sealed(manifest(BANDS), 0.0)
    effects = send(p, 3)
    assert [effect for effect in effects if isinstance(effect, Transmit)]
    shorten(p, 1)
    p.completed(0)
    assert p.acknowledged(0, Ack(ID, 0, 0).sequence)
    assert p.acknowledged(0, 8) == []


def test_coverage_is_shortened_only_where_nothing_is_claimed() -> None:
    coverage = Coverage(range(2), 4, 20)
    assert coverage.add(0, 2, 4, 8)
    assert not coverage.shorten(4) and not coverage.shorten(21) and not coverage.shorten(7)
    assert coverage.shorten(12)
    assert coverage.gap() == (0, 8, 12)
    assert not coverage.contains(0, 1, 12, 16)
    assert coverage.add(0, 2, 8, 12) and coverage.complete
