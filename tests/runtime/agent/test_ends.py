"""`on_done` comes exactly once, whatever ends a transfer, and nothing is written that should not be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from eventually import eventually
from kv_settings import SECONDS, Outcomes, kv_layout, transfer_config, transfer_params
from kvferry_contract.config import Integrity, Role
from kvferry_runtime.agent import handover, loop
from kvferry_runtime.agent.base import FetchHandle, LoadResult, SendHandle
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.agent.self_check import SelfCheck
from kvferry_runtime.agent.slot_codec import SlotCodec
from kvferry_runtime.codec.base import Rows
from kvferry_runtime.codec.none.format import NoneCodec
from kvferry_runtime.errors import LayoutError, Reason, RingUnavailable, TransferFailed
from kvferry_runtime.layout import KvDtype
from kvferry_runtime.plan import Chunk
from kvferry_runtime.ring.messages import (
    Arrived,
    Attached,
    Cancel,
    ChunksReady,
    Consumed,
    Fetch,
    Fill,
    Filled,
    Loaded,
    LoadFailed,
    Offer,
    Refused,
    SealOffer,
    Sent,
)
from kvferry_runtime.wire.data import DataHeader
from scripted_sidecar import AgentGone, ScriptedSidecar

TOKENS = 4
LAYOUT = kv_layout(2)
ID = transfer_params("prefill").transfer_id
OTHER_ID = "f" * 32


class Memory(ContiguousKv):
    """Two layers of `TOKENS` tokens."""

    def __init__(self, fill: int) -> None:
        self.tensors = [np.full((2, TOKENS, 2, 8), fill, np.uint16) for _ in LAYOUT.layers]
        super().__init__(LAYOUT, self.tensors)


class Unreadable(Memory):
    def rows(self, layer: int, part: int, token_start: int, token_stop: int) -> Rows:
        raise KeyError("the engine's block table is wrong")


class Halved(Memory):
    def rows(self, layer: int, part: int, token_start: int, token_stop: int) -> Rows:
        return super().rows(layer, part, token_start, token_stop - 1)


@dataclass
class Setup:
    agent: HostAgent
    sidecar: ScriptedSidecar
    folder: Path

    def offer(
        self, memory: Memory | None = None, number: int = 1, deadline_ms: int = 60_000
    ) -> tuple[SendHandle, Outcomes]:
        done = Outcomes()
        params = transfer_params("prefill", number, deadline_ms)
        return self.agent.offer(params, memory or Memory(7), TOKENS, done), done

    def fetch(
        self, memory: Memory | None = None, number: int = 1, deadline_ms: int = 60_000
    ) -> tuple[FetchHandle, Outcomes]:
        done = Outcomes()
        params = transfer_params("decode", number, deadline_ms)
        return self.agent.fetch(params, memory or Memory(0), 0, TOKENS, done), done

    def settled(self, done: Outcomes) -> None:
        """Nothing is open, and after a full turn of the agent there was one call only."""
        _, probe = self.fetch(number=99)
        self.sidecar.expect(Fetch)
        self.sidecar.send(LoadFailed(transfer_params("decode", 99).transfer_id, "denied", ""))
        probe.wait()
        state = self.agent.state()
        assert (state.open_sends, state.open_loads) == (0, 0)
        assert done.calls == 1


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    with ScriptedSidecar(tmp_path) as sidecar:
        agent = HostAgent(tmp_path, Role.DECODE, transfer_config())
        agent.start(LAYOUT, {}, lambda: 0.0)
        sidecar.attach()
        eventually(lambda: agent.state().attached, "attached")
        yield Setup(agent, sidecar, tmp_path)
        agent.close(5.0)


def chunk_into(setup: Setup, slot: int, fill: int, of_layer: int, **changes: object) -> DataHeader:
    """Put a chunk of one whole layer into a slot; `changes` to its header come after the digest was computed."""
    codec = SlotCodec(NoneCodec(), NoneCodec(), {"none": NoneCodec()}, Integrity.DIGEST, SelfCheck(0.05))
    chunk = Chunk(of_layer, of_layer, 1, 0, TOKENS, False, TOKENS * LAYOUT.shape(of_layer).bytes_per_token)
    header = codec.fill(setup.sidecar.ring, slot, LAYOUT, Memory(fill), ID, 0, chunk, "")
    header = msgspec.structs.replace(header, **changes)
    setup.sidecar.ring.slot_header(slot)[:] = header.pack()
    return header


# ---- sends ----


def announce(setup: Setup, offer: SendHandle) -> None:
    for layer in LAYOUT.layers:
        offer.layer_final(layer, 0, TOKENS)
    offer.seal(5)
    setup.sidecar.expect(Offer)
    while isinstance(message := setup.sidecar.receive(), ChunksReady):
        pass
    assert isinstance(message, SealOffer)


def test_a_committed_send(setup: Setup) -> None:
    offer, done = setup.offer()
    announce(setup, offer)
    setup.sidecar.send(Sent(ID, True, "", ""))
    assert done.wait() is None
    setup.sidecar.send(Sent(ID, False, "corrupt", "late"))
    offer.cancel("too late")
    setup.settled(done)


def test_a_failed_send_carries_reason_and_message(setup: Setup) -> None:
    _, done = setup.offer()
    setup.sidecar.expect(Offer)
    setup.sidecar.send(Sent(ID, False, "peer_lost", "10.0.0.9 went away"))
    failure = done.wait()
    assert (failure.reason, failure.message) == (Reason.PEER_LOST, "10.0.0.9 went away")
    setup.settled(done)


def test_a_cancelled_send_ends_at_once_and_its_slots_come_back(setup: Setup) -> None:
    """The engine has its blocks back without a word of the sidecar; a Fill that crossed is answered, unwritten."""
    offer, done = setup.offer()
    announce(setup, offer)
    before = bytes(setup.sidecar.ring.slot_message(0))
    offer.cancel("client went away")
    offer.cancel("again")
    assert done.wait().reason is Reason.CANCELLED
    assert setup.sidecar.expect(Cancel) == Cancel(ID, "client went away")
    setup.sidecar.send(Fill(ID, 0, 0, 0))
    assert setup.sidecar.expect(Filled) == Filled(ID, 0, 0, 0, 0, 0)
    assert bytes(setup.sidecar.ring.slot_message(0)) == before
    setup.sidecar.send(Sent(ID, False, "cancelled", ""))
    setup.settled(done)


@pytest.mark.parametrize("fill", [Fill(OTHER_ID, 1, 0, 0), Fill(ID, 1, 77, 0)], ids=["transfer", "sequence"])
def test_a_fill_for_what_was_never_announced_is_answered_unwritten(setup: Setup, fill: Fill) -> None:
    offer, done = setup.offer()
    announce(setup, offer)
    setup.sidecar.send(fill)
    assert setup.sidecar.expect(Filled).wire_bytes == 0
    assert not any(setup.sidecar.ring.slot_message(1))
    setup.sidecar.send(Sent(ID, True, "", ""))
    assert done.wait() is None
    setup.settled(done)


@pytest.mark.parametrize("memory", [Unreadable(7), Halved(7)], ids=["raises", "too-few-rows"])
def test_memory_that_cannot_be_read_ends_the_send(setup: Setup, memory: Memory) -> None:
    offer, done = setup.offer(memory)
    announce(setup, offer)
    setup.sidecar.send(Fill(ID, 0, 0, 0))
    assert setup.sidecar.expect(Filled).wire_bytes == 0
    setup.sidecar.expect(Cancel)
    assert done.wait().reason is Reason.INTERNAL
    setup.settled(done)


def test_a_chunk_is_filled_again_in_another_generation(setup: Setup) -> None:
    offer, done = setup.offer()
    announce(setup, offer)
    for generation in (0, 1):
        setup.sidecar.send(Fill(ID, generation, 1, generation))
        filled = setup.sidecar.expect(Filled)
        header = DataHeader.unpack(setup.sidecar.ring.slot_header(generation))
        assert (header.generation, header.sequence, header.transfer_id) == (generation, 1, ID)
        assert (filled.wire_bytes, filled.digest) == (header.wire_bytes, header.digest)
    setup.sidecar.send(Sent(ID, True, "", ""))
    assert done.wait() is None


# ---- loads ----


def test_a_load_writes_every_row_and_reports_what_the_sidecar_counted(setup: Setup) -> None:
    memory = Memory(0)
    _, done = setup.fetch(memory)
    setup.sidecar.expect(Fetch)
    for layer in LAYOUT.layers:
        chunk_into(setup, layer, 40 + layer, layer)
        setup.sidecar.send(Arrived(ID, layer))
        assert setup.sidecar.expect(Consumed) == Consumed(ID, layer, layer, True)
    setup.sidecar.send(Loaded(ID, -1, 2, 512, 512))
    assert done.wait() == LoadResult(None, 2, 512, 512)
    assert [tensor.flat[0] for tensor in memory.tensors] == [40, 41]
    setup.settled(done)


@pytest.mark.parametrize(
    "changes",
    [
        {"layer": 2},
        {"layer": 1, "layer_count": 2, "raw_bytes": 2 * TOKENS * 64},
        {"transfer_id": OTHER_ID},
        {"token_start": 1, "token_stop": TOKENS + 1},
        {"parts": 1, "head_stop": 4},
        {"head_stop": 4, "head_dim": 4},
        {"dtype": KvDtype.FP16},
        {"codec": 1},
        {"codec": 999},
        {"digest": 1},
        {"wire_bytes": 100},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_a_chunk_that_does_not_fit_is_never_written(setup: Setup, changes: dict[str, object]) -> None:
    memory = Memory(0)
    _, done = setup.fetch(memory)
    setup.sidecar.expect(Fetch)
    chunk_into(setup, 0, 0xBAD, 1, **changes)
    setup.sidecar.send(Arrived(ID, 0))
    assert not setup.sidecar.expect(Consumed).ok
    assert not any(tensor.any() for tensor in memory.tensors)
    setup.sidecar.send(LoadFailed(ID, "corrupt", "digest"))
    assert done.wait().reason is Reason.CORRUPT
    setup.settled(done)


@pytest.mark.parametrize("damage", ["header", "payload"])
def test_damaged_bytes_are_never_written(setup: Setup, damage: str) -> None:
    memory = Memory(0)
    _, done = setup.fetch(memory)
    setup.sidecar.expect(Fetch)
    chunk_into(setup, 0, 0xBAD, 0)
    view = setup.sidecar.ring.slot_header(0) if damage == "header" else setup.sidecar.ring.slot_payload(0)
    view[20] ^= 1
    setup.sidecar.send(Arrived(ID, 0))
    assert not setup.sidecar.expect(Consumed).ok
    assert not any(tensor.any() for tensor in memory.tensors)
    assert done.calls == 0


def test_a_late_chunk_of_an_old_generation_is_not_written(setup: Setup) -> None:
    memory = Memory(0)
    _, done = setup.fetch(memory)
    setup.sidecar.expect(Fetch)
    for slot, (fill, layer, generation, ok) in enumerate([(1, 0, 0, True), (2, 0, 1, True), (3, 1, 0, False)]):
        chunk_into(setup, slot, fill, layer, generation=generation)
        setup.sidecar.send(Arrived(ID, slot))
        assert setup.sidecar.expect(Consumed).ok is ok
    assert [tensor.flat[0] for tensor in memory.tensors] == [2, 0]
    # Two chunks are in place, but of two generations: this is not all of the newer one.
    setup.sidecar.send(Loaded(ID, 1, 2, 512, 512))
    assert done.wait().reason is Reason.INTERNAL


def test_loaded_is_not_believed_when_rows_are_missing(setup: Setup) -> None:
    _, done = setup.fetch()
    setup.sidecar.expect(Fetch)
    chunk_into(setup, 0, 1, 0)
    setup.sidecar.send(Arrived(ID, 0))
    setup.sidecar.expect(Consumed)
    setup.sidecar.send(Loaded(ID, 1, 1, 256, 256))
    failure = done.wait()
    assert failure.reason is Reason.INTERNAL
    setup.settled(done)


def test_a_cancelled_load_is_not_written_any_more(setup: Setup) -> None:
    memory = Memory(0)
    load, done = setup.fetch(memory)
    setup.sidecar.expect(Fetch)
    chunk_into(setup, 0, 9, 0)
    load.cancel("client went away")
    assert done.wait().reason is Reason.CANCELLED
    setup.sidecar.expect(Cancel)
    setup.sidecar.send(Arrived(ID, 0))
    assert setup.sidecar.expect(Consumed) == Consumed(ID, 0, 0, False)
    assert not any(tensor.any() for tensor in memory.tensors)
    setup.sidecar.send(LoadFailed(ID, "cancelled", ""))
    setup.settled(done)


def test_memory_that_cannot_be_written_ends_the_load(setup: Setup) -> None:
    _, done = setup.fetch(Unreadable(0))
    setup.sidecar.expect(Fetch)
    chunk_into(setup, 0, 9, 0)
    setup.sidecar.send(Arrived(ID, 0))
    assert not setup.sidecar.expect(Consumed).ok
    setup.sidecar.expect(Cancel)
    assert done.wait().reason is Reason.INTERNAL
    setup.settled(done)


# ---- both ----


@pytest.mark.parametrize("kind", ["offer", "fetch"])
def test_the_agents_own_deadline_is_the_last_resort(setup: Setup, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "DEADLINE_MARGIN_S", 0.0)
    _, done = setup.offer(deadline_ms=1) if kind == "offer" else setup.fetch(deadline_ms=1)
    setup.sidecar.expect(Offer if kind == "offer" else Fetch)
    assert done.wait().reason is Reason.DEADLINE
    setup.sidecar.expect(Cancel)
    setup.settled(done)


def test_the_margin_leaves_the_deadline_to_the_sidecar() -> None:
    assert handover.DEADLINE_MARGIN_S >= 5


DEATHS: dict[str, Callable[[Setup, SendHandle], None]] = {
    "after the offer": lambda setup, _: None,
    "before a fill is answered": lambda setup, _: setup.sidecar.send(Fill(ID, 0, 0, 0)),
    "after garbage": lambda setup, _: setup.sidecar.send_packet(b"\xff\xff"),
    "after a slot that does not exist": lambda setup, _: setup.sidecar.send(Fill(ID, 4000, 0, 0)),
    "after a second welcome": lambda setup, _: setup.sidecar.send(Attached(1, "boot-1", 4, 4096)),
    "after a refusal": lambda setup, _: setup.sidecar.send(Refused("go away")),
}


def test_a_sidecar_that_is_stopped_and_keeps_its_socket_counts_as_lost(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MISSED_BEATS", 2)
    _, sent = setup.offer()
    _, loaded = setup.fetch(number=2)
    setup.sidecar.expect(Offer)
    setup.sidecar.expect(Fetch)
    # from here on nobody reads the socket, and no beat is answered
    assert [done.wait().reason for done in (sent, loaded)] == [Reason.SIDECAR_LOST] * 2
    assert (sent.calls, loaded.calls) == (1, 1)


@pytest.mark.parametrize("death", DEATHS, ids=lambda name: name.replace(" ", "-"))
def test_sidecar_lost_in_any_state_and_back_again(setup: Setup, death: str) -> None:
    offer, sent = setup.offer()
    announce(setup, offer)
    _, loaded = setup.fetch(number=2)
    setup.sidecar.expect(Fetch)
    DEATHS[death](setup, offer)
    setup.sidecar.die()
    for done in (sent, loaded):
        failure = done.wait()
        assert isinstance(failure, TransferFailed) and failure.reason in (Reason.SIDECAR_LOST, Reason.INTERNAL)
    offer.cancel("after the end")
    with ScriptedSidecar(setup.folder, slots=2, boot_id="boot-2") as setup.sidecar:
        setup.sidecar.attach()
        eventually(lambda: setup.agent.state().attached, "attached again")
        setup.settled(sent)
        assert loaded.calls == 1


def test_a_transfer_id_in_use_is_refused_and_the_first_goes_on(setup: Setup) -> None:
    _, first = setup.fetch()
    _, second = setup.fetch()
    assert second.wait().reason is Reason.INTERNAL
    setup.sidecar.expect(Fetch)
    setup.sidecar.send(LoadFailed(ID, "denied", "unknown"))
    assert first.wait().reason is Reason.DENIED
    setup.settled(first)
    assert second.calls == 1


def test_a_peer_that_no_sidecar_would_read_harms_that_transfer_alone(setup: Setup) -> None:
    _, first = setup.fetch()
    setup.sidecar.expect(Fetch)
    second = Outcomes()
    params = replace(transfer_params("decode", 2), peers=("x" * 300 + ":1",))
    setup.agent.fetch(params, Memory(0), 0, TOKENS, second)
    assert second.wait().reason is Reason.INTERNAL
    setup.sidecar.send(LoadFailed(ID, "denied", "unknown"))
    assert first.wait().reason is Reason.DENIED


def test_an_on_done_that_raises_harms_nobody(setup: Setup) -> None:
    called = threading.Event()

    def on_done(_: object) -> None:
        called.set()
        raise RuntimeError("defect in the engine")

    setup.agent.fetch(transfer_params("decode"), Memory(0), 0, TOKENS, on_done)
    setup.sidecar.expect(Fetch)
    setup.sidecar.send(LoadFailed(ID, "denied", ""))
    assert called.wait(SECONDS)
    _, done = setup.fetch(number=2)
    setup.sidecar.expect(Fetch)
    setup.sidecar.send(LoadFailed(transfer_params("decode", 2).transfer_id, "a reason of the future", ""))
    assert done.wait().reason is Reason.INTERNAL


def test_close_cancels_what_is_open_and_detaches(setup: Setup) -> None:
    offer, sent = setup.offer()
    _, loaded = setup.fetch()
    setup.sidecar.expect(Offer)
    setup.sidecar.expect(Fetch)
    setup.agent.close(5.0)
    setup.agent.close(5.0)
    assert sent.wait().reason is loaded.wait().reason is Reason.CANCELLED
    assert {setup.sidecar.expect(Cancel), setup.sidecar.expect(Cancel)} == {Cancel(ID, "the engine is shutting down")}
    with pytest.raises(AgentGone):
        setup.sidecar.receive()
    offer.cancel("after the end")
    assert (sent.calls, loaded.calls) == (1, 1)
    with pytest.raises(RingUnavailable, match="closed"):
        setup.offer(number=2)
    assert not [thread for thread in threading.enumerate() if thread.name == "kvferry-agent"]


def test_without_a_sidecar_the_engine_hears_it_soon(tmp_path: Path) -> None:
    agent = HostAgent(tmp_path, Role.PREFILL, transfer_config())
    with pytest.raises(RingUnavailable, match="not started"):
        agent.offer(transfer_params("prefill"), Memory(7), TOKENS, Outcomes())
    agent.start(LAYOUT, {}, lambda: 0.0)
    sent, loaded = Outcomes(), Outcomes()
    offer = agent.offer(transfer_params("prefill"), Memory(7), TOKENS, sent)
    agent.fetch(transfer_params("decode"), Memory(0), 0, TOKENS, loaded)
    assert sent.wait().reason is loaded.wait().reason is Reason.NO_CONNECTOR
    offer.layer_final(0, 0, TOKENS)
    agent.close(5.0)
    assert (sent.calls, loaded.calls) == (1, 1)


def test_an_id_is_not_taken_again_before_the_sidecar_has_answered(setup: Setup) -> None:
    """A late chunk of the first transfer must not land in the memory of the second."""
    first, done = setup.fetch()
    setup.sidecar.expect(Fetch)
    first.cancel("the client went away")
    setup.sidecar.expect(Cancel)
    done.wait()
    memory = Memory(0)
    _, again = setup.fetch(memory)
    assert isinstance(failure := again.wait(), TransferFailed) and failure.reason is Reason.INTERNAL
    chunk_into(setup, 0, 9, 0)
    setup.sidecar.send(Arrived(ID, 0))
    assert not setup.sidecar.expect(Consumed).ok
    assert not any(tensor.any() for tensor in memory.tensors)
    setup.sidecar.send(LoadFailed(ID, "cancelled", ""))
    setup.settled(again)


def test_an_empty_range_is_refused_and_the_agent_stays(setup: Setup) -> None:
    done = Outcomes()
    with pytest.raises(LayoutError, match="4 to 4"):
        setup.agent.fetch(transfer_params("decode", 1), Memory(0), TOKENS, TOKENS, done)
    assert setup.agent.state().open_loads == 0 and done.calls == 0
