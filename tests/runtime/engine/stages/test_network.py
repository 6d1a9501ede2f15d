"""Stages in processes of their own, by real UCX."""

from __future__ import annotations

import asyncio
import hashlib
import queue
import signal
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import stage_process
from eventually import eventually, eventually_async
from kvferry_runtime.engine.stages import network
from kvferry_runtime.engine.stages.loopback import LoopbackGroup
from kvferry_runtime.engine.stages.messages import AnyMessage, PrefillPass, Ready, Result
from kvferry_runtime.engine.stages.network import NetworkRing
from kvferry_runtime.engine.stages.ring import Activation, in_flight
from kvferry_runtime.engine.stages.settings import RingSettings
from kvferry_runtime.errors import StageUnreachable, TransportUnavailable
from own_addresses import own_address
from own_threads import new_threads
from stage_process import ACTIVATION_BYTES, running

KEY = "0123456789abcdef"


def hosts(stages: int) -> list[str]:
    return [own_address(stage) for stage in range(stages)]


def settings(stages: int, port: int) -> list[RingSettings]:
    return [stage_process.settings(stage, hosts(stages), port, KEY) for stage in range(stages)]


@pytest.fixture
def port() -> int:
    with socket.socket() as held:
        held.bind((hosts(1)[0], 0))
        free: int = held.getsockname()[1]
    # closed first: two sockets cannot have it
    return free


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("stages", [2, 3])
async def test_activations_of_4_mib_arrive_byte_for_byte(stages: int, port: int) -> None:
    own, *others = settings(stages, port)
    results: queue.Queue[AnyMessage] = queue.Queue()
    generator = np.random.default_rng(7)
    sent = [generator.integers(0, 1 << 16, size=(512, 4096), dtype=np.uint16) for _ in range(2 * in_flight(stages))]
    assert sent[0].nbytes == ACTIVATION_BYTES
    async with running(*others):
        ring = NetworkRing(own, {"model": "m"}, ACTIVATION_BYTES)
        try:
            await asyncio.to_thread(ring.connect)
            assert ring.lanes
            ring.start(lambda message, given: results.put(message), lambda text: results.put(Result(0, [], text)))
            for number, array in enumerate(sent):
                if number >= in_flight(stages):
                    await check(results, sent[number - in_flight(stages)], number - in_flight(stages), stages)
                ring.send(PrefillPass(number, 1, 0, 512, None), array)
            for number in range(in_flight(stages), len(sent)):
                await check(results, sent[number], number, stages)
        finally:
            ring.close(5)


async def check(results: queue.Queue[AnyMessage], array: np.ndarray, number: int, stages: int) -> None:
    """What the last stage got of this pass: the stages between added one to each byte."""
    expected = (array.view(np.uint8) + np.uint8(stages - 2)).tobytes()
    found = await asyncio.to_thread(results.get, True, stage_process.SECONDS)
    assert found == Result(number, list(hashlib.blake2b(expected).digest()))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_a_stage_that_dies_ends_the_group_and_is_named(stage: int, number: signal.Signals, port: int) -> None:
    async with running(*settings(3, port)) as stages:
        for each in stages:
            await each.said("complete")
        stages[stage].process.send_signal(number)
        for each in stages:
            if each is not stages[stage]:
                assert f"stage {stage} ({hosts(3)[stage]}" in await each.said("lost")
                await each.said("closed")
                assert await each.process.wait() == 1


@pytest.mark.slow
async def test_a_container_that_restarts_while_the_group_forms_finds_its_place(port: int) -> None:
    first, second, third = settings(3, port)
    async with running(first, second) as stages:
        await asyncio.sleep(2)  # they are linked, and wait for the third
        stages[1].process.kill()
        await stages[1].process.wait()
        async with running(second, third) as others:
            for each in (stages[0], *others):
                await each.said("complete")


async def test_connecting_and_closing_leaves_nothing_behind(port: int) -> None:
    def once() -> None:
        rings = [NetworkRing(own, {}, 1 << 16) for own in settings(2, port)]
        threads = [threading.Thread(target=ring.connect) for ring in rings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for ring in rings:
            ring.start(lambda message, given: None, lambda text: None)
            ring.send(Ready(ring.stage, 1, 8))
        for ring in rings:
            ring.close(5)
            ring.close(5)

    await asyncio.to_thread(once)  # what the libraries keep for ever
    files, others = descriptors(), set(threading.enumerate())
    for _ in range(3):
        await asyncio.to_thread(once)
    eventually(lambda: not new_threads(others), "no threads")
    assert descriptors() <= files


async def listens(ring: NetworkRing) -> bool:
    return ring._node.links._listener is not None


async def test_closing_ends_a_connect_that_is_under_way(port: int) -> None:
    ring = NetworkRing(settings(2, port)[0], {}, 1 << 16)
    connecting = asyncio.create_task(asyncio.to_thread(ring.connect))
    await eventually_async(lambda: listens(ring), "the stage takes part")
    await asyncio.to_thread(ring.close, 5)
    with pytest.raises(StageUnreachable, match="stage 0 was closed before its ring was complete"):
        await connecting


def test_without_ucx_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "ucxx"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ucxx", None)
    with pytest.raises(TransportUnavailable, match=r"pip install 'kvferry\[sidecar\]'"):
        NetworkRing(stage_process.settings(0, ["a", "b"], 1, KEY), {}, 1 << 16)
    assert not [each for each in threading.enumerate() if each.name == "kvferry-stages"]


def test_the_loopback_group_is_a_ring_like_the_real_one() -> None:
    others = set(threading.enumerate())
    heard: queue.Queue[AnyMessage] = queue.Queue()
    lost: queue.Queue[str] = queue.Queue()

    def answer(message: AnyMessage, activation: Activation | None) -> None:
        assert isinstance(message, PrefillPass) and activation is not None
        group.rings[1].send(Result(message.number, [int(activation.array.sum())]))
        activation.release()

    with LoopbackGroup(2, 1 << 16) as group:
        group.rings[0].start(lambda message, given: heard.put(message), lost.put)
        group.rings[1].start(answer, lost.put)
        group.rings[0].send(PrefillPass(5, 1, 0, 4, None), np.ones((4, 8), np.float32))
        assert heard.get(timeout=stage_process.SECONDS) == Result(5, [32])
        group.rings[1].close(5)
        assert lost.get(timeout=stage_process.SECONDS) == "stage 1 (stage-1) shuts down"
    assert not new_threads(others)


def test_the_transport_of_pods_is_ucx() -> None:
    assert network.ucx().name == "ucx-auto"
