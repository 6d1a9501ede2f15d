"""Engines whose KV lies on a device, here its stand-in: the same answers, and a forward pass that waits for nothing."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import reference_engines as engines
from device_reference_engines import CHUNKS, Trio, start
from kv_settings import transfer_config
from kvferry_contract.config import Method, Role
from kvferry_runtime.engine.reference.request import Mode
from kvferry_runtime.engine.reference.service import make_agent
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.ring.messages import ChunksReady, Fill, Offer
from patient_agents import patient_agents
from reference_engines import until
from sparse_answers import ANSWER, HALF, expected, loaded
from stand_in_device import StandInDevice, StandInEvent
from tiny_model import prompt_of

ENGINE_THREAD = "kvferry-engine"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    patient_agents(monkeypatch)


@dataclass
class Rig:
    """Three engines, and the devices of the two that transfer."""

    trio: Trio
    prefill: StandInDevice
    decode: StandInDevice


@pytest.fixture(params=["tiny", "tiny_bf16"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    devices = [StandInDevice(seed, longest_delay=0.001) for seed in (1, 2)]
    async with AsyncExitStack() as stack:
        for device in devices:
            stack.callback(device.close)
        yield Rig(await start(stack, request.getfixturevalue(request.param), tmp_path, *devices), *devices)


async def test_answers_equal_those_of_one_engine(rig: Rig) -> None:
    """Prompts that end within a block, at its end, and after a whole pass of prefill."""
    trio = rig.trio
    for number, length in enumerate((1, 33, 512, 700)):
        whole = await engines.complete(trio.alone, prompt_of(length))
        first, rest, _ = await trio.ask(number, prompt_of(length))
        assert rest.tokens == whole.tokens, f"prompt of {length} tokens"
        assert first.tokens == whole.tokens[:1]
        assert rest.end is not None and rest.end.mode is Mode.TRANSFERRED
        assert rest.end.cached_tokens == length
    await trio.all_free()


async def test_the_forward_thread_never_waits_for_the_device(rig: Rig) -> None:
    """Case 33: prefill queues all of its passes and answers while the device has not even begun them; not before they
    are done does a byte leave."""
    trio, prompt, gate = rig.trio, prompt_of(700), StandInEvent()
    whole = await engines.complete(trio.alone, prompt)
    rig.prefill.compute.wait(gate)
    answers = asyncio.create_task(trio.ask(1, prompt))
    await until(lambda: trio.prefill.engine.loop.counts()["held"] == 1)
    assert trio.decode.engine.loop.counts()["parked"] == 1
    gate.fire()
    first, rest, _ = await answers
    assert (first.tokens, rest.tokens) == (whole.tokens[:1], whole.tokens)
    for device in (rig.prefill, rig.decode):
        assert device.waits, "someone waits for events"
        assert ENGINE_THREAD not in device.waits


async def test_blocks_stay_held_until_the_device_has_let_go(rig: Rig) -> None:
    """Case 43: an offer is withdrawn while a copy waits for the device."""
    prefill, gate = rig.trio.prefill, StandInEvent()
    rig.prefill.compute.wait(gate)
    params = engines.transfer(1, "prefill", deadline_ms=60_000)
    await engines.complete(prefill.engine, prompt_of(40), max_tokens=1, kv_transfer_params=params)
    prefill.sidecar.expect(Offer)
    ready = prefill.sidecar.expect(ChunksReady)
    prefill.sidecar.send(Fill(ready.transfer_id, 0, ready.chunks[0].sequence, 0))
    await until(lambda: prefill.agent.state().lent_slots == 1)
    prefill.engine.loop.withdraw(params["transfer_id"])
    await until(lambda: prefill.agent.state().open_sends == 0)
    assert prefill.engine.loop.counts()["held"] == 1
    gate.fire()
    await rig.trio.all_free()


async def test_a_sparse_method_keeps_what_is_looked_at_on_the_device(tiny: Path, tmp_path: Path) -> None:
    """Case 32: the answer of an engine that leaves the same half of the tokens out of its own cache."""
    transfer = transfer_config(method=Method.SPARSE50, keep_exact_first=HALF.first, keep_exact_last=HALF.last, **CHUNKS)
    devices = [StandInDevice(seed, longest_delay=0.001) for seed in (1, 2)]
    async with AsyncExitStack() as stack:
        for device in devices:
            stack.callback(device.close)
        trio = await start(stack, tiny, tmp_path, *devices, transfer=transfer)
        runner = loaded(tiny)
        for number, length in enumerate((80, 300, 600)):
            prompt = prompt_of(length)
            _, rest, _ = await trio.ask(number, prompt, max_tokens=ANSWER, ignore_eos=True)
            assert rest.end.mode is Mode.TRANSFERRED
            assert rest.tokens == expected(runner, prompt, HALF), f"prompt of {length} tokens"
            assert rest.end.transfer.kept_tokens == (HALF.kept(length) if HALF.evicts(length) else None)
        await trio.all_free()


def test_a_device_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    settings = dataclasses.replace(
        engines.SETTINGS, role=Role.PREFILL, device="cuda", transfer=transfer_config(), ring_directory=tmp_path
    )
    with pytest.raises(SettingsError, match="--device cuda: torch sees no GPU here"):
        make_agent(settings)
