"""The agent for devices, on a stand-in whose streams run late, against scripted sidecars."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from device_engines import Engine, StandInGpu, cache_of, hand_over
from eventually import eventually
from kv_settings import SECONDS, Outcomes, kv_layout, transfer_config, transfer_params
from kvferry_contract.config import Method, Role
from kvferry_runtime.agent.base import SendHandle
from kvferry_runtime.agent.contiguous import ContiguousKv
from kvferry_runtime.agent.device.agent import DeviceAgent
from kvferry_runtime.agent.device.memory import DeviceCache
from kvferry_runtime.agent.loop import FIRST_RETRY_SECONDS
from kvferry_runtime.agent.methods import OBSERVED_BYTES
from kvferry_runtime.errors import LayoutError, Reason, TransferFailed
from kvferry_runtime.layout import KvLayout
from kvferry_runtime.ring.messages import Cancel, Chosen, ChunksReady, Fetch, Fill, Filled, Offer, Sent
from kvferry_runtime.trace.recorder import Recorder
from own_threads import new_threads
from scripted_sidecar import AgentGone, ScriptedSidecar
from stand_in_device import StandInDevice, StandInEvent

LAYERS, BLOCKS, BLOCK_TOKENS, TOKENS = 4, 6, 8, 20
LAYOUT = kv_layout(LAYERS)
WIDE = kv_layout(1, heads=16, head_dim=64)
WIDE_CHUNK = 128 * 1024
"""Holds a whole layer of it: 80 KiB."""
ROUNDS = 50
"""Each of them launches 32 kernels in the interpreter; a thousand rounds run on a GPU (tests/gpu)."""

OpenEngine = Callable[..., Engine]


@pytest.fixture
def open_engine(tmp_path: Path) -> Iterator[OpenEngine]:
    """Makes one: `open_engine(role, device, method)`."""
    with ExitStack() as stack:

        def make(
            role: Role,
            device: StandInDevice | None = None,
            method: Method = Method.NONE,
            layout: KvLayout = LAYOUT,
            chunk_bytes: int = 4096,
            recorder: Recorder | None = None,
        ) -> Engine:
            gpu = StandInGpu(device)
            stack.callback(gpu.device.close)
            folder = tmp_path / role.value
            folder.mkdir()
            sidecar = stack.enter_context(ScriptedSidecar(folder, chunk_bytes=chunk_bytes))
            transfer = transfer_config(
                method=method, keep_exact_first=2, keep_exact_last=2, chunk_bytes=chunk_bytes,
                auto_methods=(Method.INT8,),
            )  # fmt: skip
            agent = DeviceAgent(folder, role, transfer, gpu.device, BLOCK_TOKENS, recorder)
            stack.callback(agent.close, 5.0)
            agent.start(layout, {"model": "tiny"}, lambda: 0.0)
            sidecar.attach()
            eventually(lambda: agent.state().attached, "attached")
            tensors = cache_of(layout, BLOCKS, BLOCK_TOKENS, gpu.where)
            return Engine(gpu, agent, sidecar, tensors, DeviceCache(layout, tensors), TOKENS)

        yield make


def stand_in(engine: Engine) -> StandInDevice:
    assert isinstance(engine.gpu.device, StandInDevice)
    return engine.gpu.device


@pytest.mark.parametrize("registers", [True, False], ids=["registered", "staged"])
def test_no_layer_is_read_before_its_event(open_engine: OpenEngine, registers: bool) -> None:
    """Case 33: layers are announced when their kernels are queued, and hold garbage until those have run."""
    prefill = open_engine(Role.PREFILL, StandInDevice(1, 0.001, registers))
    decode = open_engine(Role.DECODE, StandInDevice(2, 0.001, registers))
    dice = random.Random(33)
    for number in range(ROUNDS):
        blocks = dice.sample(range(BLOCKS), 3)
        values = [layer + number % 7 for layer in range(LAYERS)]
        hand_over(prefill, decode, number, blocks, values, lambda: dice.random() * 0.002)
        for layer, value in enumerate(values):
            assert (decode.held(layer, blocks[::-1]) == value).all(), (number, layer)
    assert [len(stand_in(engine).registered) for engine in (prefill, decode)] == [int(registers)] * 2


@pytest.mark.parametrize("method", [Method.INT8, Method.FP8])
def test_lossy_methods_keep_the_ends_exact(open_engine: OpenEngine, method: Method) -> None:
    prefill, decode = open_engine(Role.PREFILL, method=method), open_engine(Role.DECODE, method=method)
    result = hand_over(prefill, decode, 5, [4, 0, 2], [layer + 5.0 for layer in range(LAYERS)])
    assert result.wire_bytes < result.raw_bytes
    for layer in range(LAYERS):
        found = decode.held(layer, [2, 0, 4])
        assert (found[:2] == layer + 5).all() and (found[-2:] == layer + 5).all()
        assert ((found - (layer + 5)).abs() <= 0.01 * (layer + 5)).all()


def test_values_that_a_method_cannot_carry_go_exact(open_engine: OpenEngine) -> None:
    prefill, decode = open_engine(Role.PREFILL, method=Method.INT8), open_engine(Role.DECODE, method=Method.INT8)
    result = hand_over(prefill, decode, 1, [0, 1, 2], [float("inf")] * LAYERS)
    assert result.wire_bytes == result.raw_bytes
    assert all(decode.held(layer, [2, 1, 0]).isinf().all() for layer in range(LAYERS))


def test_blocks_come_back_only_when_the_device_has_let_go(open_engine: OpenEngine) -> None:
    """A cancelled send whose kernel still waits for its layer: the engine hears of it, but only afterwards."""
    engine = open_engine(Role.PREFILL)
    done, gate = Outcomes(), StandInEvent()
    offer = engine.agent.offer(transfer_params("prefill"), engine.agent.memory(engine.cache, [0, 1, 2]), TOKENS, done)
    engine.sidecar.expect(Offer)
    stand_in(engine).compute.wait(gate)
    engine.compute(offer, 0, 1.0)
    ready = engine.sidecar.expect(ChunksReady)
    engine.sidecar.send(Fill(ready.transfer_id, 0, ready.chunks[0].sequence, 0))
    eventually(lambda: engine.agent.state().lent_slots == 1, "a slot that the device works on")
    offer.cancel("not wanted")
    engine.sidecar.expect(Cancel)
    assert done.calls == 0
    gate.fire()
    failure = done.wait()
    assert isinstance(failure, TransferFailed) and failure.reason is Reason.CANCELLED
    assert engine.sidecar.expect(Filled).slot == 0


def test_two_offers_of_one_prompt_come_back_each_when_the_device_lets_go_of_it(open_engine: OpenEngine) -> None:
    """For two stages of decode, over the same blocks: the end of one neither ends nor waits for the other."""
    engine = open_engine(Role.PREFILL)
    memory, gate = engine.agent.memory(engine.cache, [0, 1, 2]), StandInEvent()
    ends, offers = [Outcomes(), Outcomes()], []
    for number, layers in enumerate((range(2), range(2, 4))):
        offers.append(engine.agent.offer(transfer_params("prefill", number), memory, TOKENS, ends[number], layers))
        assert engine.sidecar.expect(Offer).layers == layers
    engine.compute(offers[0], 0, 1.0)
    first = engine.sidecar.expect(ChunksReady)
    stand_in(engine).compute.wait(gate)
    engine.compute(offers[1], 2, 2.0)
    second = engine.sidecar.expect(ChunksReady)
    engine.sidecar.send(Fill(second.transfer_id, 1, second.chunks[0].sequence, 0))
    eventually(lambda: engine.agent.state().lent_slots == 1, "a slot that the device works on")
    offers[0].cancel("not wanted")
    engine.sidecar.expect(Cancel)
    assert ends[0].wait().reason is Reason.CANCELLED
    assert ends[1].calls == 0
    gate.fire()
    filled = engine.sidecar.expect(Filled)
    assert (filled.transfer_id, filled.slot) == (second.transfer_id, 1) and filled.wire_bytes > 0
    engine.sidecar.send(Fill(first.transfer_id, 0, first.chunks[0].sequence, 0))
    assert engine.sidecar.expect(Filled).wire_bytes == 0, "it is over"
    engine.sidecar.send(Sent(second.transfer_id, True, "", ""))
    assert ends[1].wait() is None


def test_what_the_device_reports_ends_the_transfer(open_engine: OpenEngine) -> None:
    engine = open_engine(Role.PREFILL)
    done = Outcomes()
    offer = engine.agent.offer(transfer_params("prefill"), engine.agent.memory(engine.cache, [0, 1, 2]), TOKENS, done)
    engine.sidecar.expect(Offer)

    def fault() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    stand_in(engine).compute.submit(fault)
    offer.layer_final(0, 0, TOKENS)
    ready = engine.sidecar.expect(ChunksReady)
    engine.sidecar.send(Fill(ready.transfer_id, 1, ready.chunks[0].sequence, 0))
    answer = engine.sidecar.expect(Filled)
    assert (answer.slot, answer.wire_bytes) == (1, 0)
    failure = done.wait()
    assert isinstance(failure, TransferFailed) and "illegal memory access" in failure.message


def test_a_sidecar_that_dies_gives_everything_back(open_engine: OpenEngine) -> None:
    """Also the registration of its ring, once the device no longer copies into it."""
    engine = open_engine(Role.PREFILL)
    done = Outcomes()
    offer = engine.agent.offer(transfer_params("prefill"), engine.agent.memory(engine.cache, [0, 1, 2]), TOKENS, done)
    engine.sidecar.expect(Offer)
    engine.compute(offer, 0, 1.0, seconds=0.05)
    ready = engine.sidecar.expect(ChunksReady)
    engine.sidecar.send(Fill(ready.transfer_id, 0, ready.chunks[0].sequence, 0))
    engine.sidecar.die()
    failure = done.wait()
    assert isinstance(failure, TransferFailed) and failure.reason is Reason.SIDECAR_LOST
    engine.agent.close(SECONDS)
    assert not stand_in(engine).registered


def lend_a_slot(engine: Engine, gate: StandInEvent, number: int = 1) -> SendHandle:
    """Slot 0, for a chunk whose layer is final when `gate` is fired."""
    memory = engine.agent.memory(engine.cache, [0, 1, 2])
    offer = engine.agent.offer(transfer_params("prefill", number), memory, TOKENS, Outcomes())
    engine.sidecar.expect(Offer)
    stand_in(engine).compute.wait(gate)
    engine.compute(offer, 0, 1.0)
    ready = engine.sidecar.expect(ChunksReady)
    engine.sidecar.send(Fill(ready.transfer_id, 0, ready.chunks[0].sequence, 0))
    eventually(lambda: engine.agent.state().lent_slots == 1, "a slot that the device works on")
    return offer


@pytest.mark.parametrize("recorder", [None, Recorder("prefill")], ids=["plain", "traced"])
def test_no_slot_is_lent_again_before_the_copy_into_it_has_ended(
    open_engine: OpenEngine, recorder: Recorder | None
) -> None:
    """A sidecar that sends the agent away frees its slots, although the device still writes one of them: it could lend
    that one to another chunk at once, were the agent attached again."""
    engine, gate = open_engine(Role.PREFILL, recorder=recorder), StandInEvent()
    lend_a_slot(engine, gate)
    engine.sidecar.hang_up()
    eventually(lambda: not engine.agent.state().attached, "detached")
    assert not engine.sidecar.called_within(10 * FIRST_RETRY_SECONDS)
    gate.fire()
    engine.sidecar.accept()
    assert engine.agent.state().lent_slots == 0


def test_an_agent_keeps_its_socket_until_its_copies_have_ended(open_engine: OpenEngine) -> None:
    """With the socket the sidecar takes the slots back, for whichever agent is the next."""
    engine, gate = open_engine(Role.PREFILL), StandInEvent()
    lend_a_slot(engine, gate)
    engine.sidecar.send_packet(b"no message")
    eventually(lambda: not engine.agent.state().attached, "detached")
    assert not engine.sidecar.called_within(10 * FIRST_RETRY_SECONDS)
    assert engine.sidecar.has_agent()
    gate.fire()
    with pytest.raises(AgentGone):
        engine.sidecar.receive()
    engine.sidecar.attach()
    eventually(lambda: engine.agent.state().attached, "attached again")


def test_an_agent_that_closes_keeps_its_socket_until_its_copies_have_ended(open_engine: OpenEngine) -> None:
    others = set(threading.enumerate())
    engine, gate = open_engine(Role.PREFILL), StandInEvent()
    lend_a_slot(engine, gate)
    engine.agent.close(0.05)
    engine.sidecar.expect(Cancel)
    assert engine.sidecar.has_agent()
    gate.fire()
    with pytest.raises(AgentGone):
        engine.sidecar.receive()
    assert engine.agent.state().lent_slots == 0
    eventually(lambda: not new_threads(others), "its threads have ended with its copies")


def test_closing_leaves_no_thread(open_engine: OpenEngine) -> None:
    others = set(threading.enumerate())
    prefill, decode = open_engine(Role.PREFILL), open_engine(Role.DECODE)
    hand_over(prefill, decode, 1, [0, 1, 2], [1.0] * LAYERS)
    for engine in (prefill, decode):
        engine.agent.close(SECONDS)
        engine.agent.close(SECONDS)
    assert not new_threads(others)


def test_a_device_that_never_ends_its_copies_is_spoken_of_once(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kvferry_runtime.agent.parting.BUSY_SECONDS", 0.0)
    engine, gate = open_engine(Role.PREFILL), StandInEvent()
    lend_a_slot(engine, gate)
    engine.sidecar.hang_up()
    eventually(lambda: "restart the engine" in caplog.text, "what to do")
    for number in range(2, 5):  # each wakes the agent
        done = Outcomes()
        engine.agent.offer(transfer_params("prefill", number), engine.agent.memory(engine.cache, [3]), 1, done)
        assert done.wait().reason is Reason.NO_CONNECTOR
    gate.fire()
    engine.sidecar.attach()
    assert caplog.text.count("restart the engine") == 1


def test_a_transfer_that_is_over_is_not_cancelled_when_its_copy_ends(open_engine: OpenEngine) -> None:
    """The sidecar's last word has come, so it would answer no more, and the id would stay in use for good."""
    engine, gate = open_engine(Role.PREFILL, method=Method.LOSSLESS), StandInEvent()
    lend_a_slot(engine, gate).cancel("not wanted")
    cancelled = engine.sidecar.expect(Cancel).transfer_id
    engine.sidecar.send(Sent(transfer_id=cancelled, committed=False, reason="cancelled", message="not wanted"))
    # Answered after the message before it: the agent has then read that one too.
    engine.sidecar.send(Fill(cancelled, 1, 0, 0))
    assert engine.sidecar.expect(Filled).slot == 1
    gate.fire()
    assert engine.sidecar.expect(Filled).slot == 0
    memory = engine.agent.memory(engine.cache, [3, 4, 5])
    engine.agent.offer(transfer_params("prefill"), memory, TOKENS, Outcomes())
    assert engine.sidecar.expect(Offer).transfer_id == cancelled


def test_what_chunks_took_is_told_with_the_next_offer(open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The speeds by which the sidecar chooses follow the device, not only what was measured at the start."""
    monkeypatch.setattr("kvferry_runtime.agent.device.method_speed.PROBE_BYTES", 16 * 1024)
    engine = open_engine(Role.PREFILL, method=Method.AUTO, layout=WIDE, chunk_bytes=WIDE_CHUNK)

    def offer(number: int) -> tuple[SendHandle, Offer]:
        memory = engine.agent.memory(engine.cache, [0, 1, 2])
        handle = engine.agent.offer(transfer_params("prefill", number), memory, TOKENS, Outcomes())
        return handle, engine.sidecar.expect(Offer)

    handle, before = offer(1)
    engine.sidecar.send(Chosen(before.transfer_id, layerwise=True, exact_apart=False))
    engine.compute(handle, 0, 1.0)
    ready = engine.sidecar.expect(ChunksReady)
    engine.sidecar.send(Fill(ready.transfer_id, 0, ready.chunks[0].sequence, 0, "none"))
    assert engine.sidecar.expect(Filled).raw_bytes >= OBSERVED_BYTES
    handle.cancel("enough")
    engine.sidecar.expect(Cancel)
    _, after = offer(2)
    changed = {new.method for old, new in zip(before.methods, after.methods, strict=True) if old != new}
    assert changed == {"none"}


def test_a_request_whose_rest_can_be_computed_is_fetched_as_such(open_engine: OpenEngine) -> None:
    engine = open_engine(Role.DECODE)
    memory = engine.agent.memory(engine.cache, [0, 1, 2])
    memory.resume_tokens = BLOCK_TOKENS
    engine.agent.fetch(transfer_params("decode"), memory, 0, TOKENS, Outcomes())
    assert engine.sidecar.expect(Fetch).resume_tokens == BLOCK_TOKENS


def test_host_memory_is_refused(open_engine: OpenEngine) -> None:
    engine = open_engine(Role.PREFILL)
    memory = ContiguousKv(LAYOUT, [torch.zeros(2, TOKENS, 2, 8, dtype=torch.bfloat16) for _ in range(LAYERS)])
    with pytest.raises(LayoutError, match="host memory"):
        engine.agent.offer(transfer_params("prefill"), memory, TOKENS, Outcomes())


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (LAYERS - 1, "3 tensors for 4 layers"),
        (torch.zeros(BLOCKS, 1, BLOCK_TOKENS, 2, 8, dtype=torch.bfloat16), r"needed is bf16 \[6, 2, 8, 2, 8\]"),
        (torch.zeros(BLOCKS, 2, BLOCK_TOKENS, 2, 8), "torch.float32"),
        (torch.zeros(BLOCKS, 2, BLOCK_TOKENS, 8, 2, dtype=torch.bfloat16).transpose(3, 4), "must be contiguous"),
    ],
)
def test_a_cache_that_cannot_be_read_is_refused(tensors: int | torch.Tensor, message: str) -> None:
    good = torch.zeros(BLOCKS, 2, BLOCK_TOKENS, 2, 8, dtype=torch.bfloat16)
    given = [good] * tensors if isinstance(tensors, int) else [good, good, good, tensors]
    with pytest.raises(LayoutError, match=message):
        DeviceCache(LAYOUT, given)


@pytest.mark.parametrize("blocks", [[0, 0], [BLOCKS], [-1]])
def test_blocks_that_are_not_there_are_refused(open_engine: OpenEngine, blocks: list[int]) -> None:
    engine = open_engine(Role.PREFILL)
    with pytest.raises(LayoutError, match="not in a cache of 6, or used twice"):
        engine.agent.memory(engine.cache, blocks)
