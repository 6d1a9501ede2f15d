"""Thousands of transfers under faults of every kind: each has one outcome, right bytes or none, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from kvferry_contract.config import FailurePolicy, Role, TransportKind
from kvferry_runtime.ring.messages import Attached, Loaded, LoadFailed, Sent
from kvferry_runtime.transport.base import Transport
from kvferry_runtime.transport.faulty import Fault, FaultKind, FaultPlan, FaultyTransport, Way
from kvferry_runtime.transport.ucx import UcxTransport
from kvferry_runtime.wire.receiver import IncomingTransfer
from kvferry_runtime.wire.sender import OutgoingTransfer
from scripted_agent import Prompt, ScriptedAgent
from sidecar_pods import Pod, World, same, transfer_id, until, world

SECONDS = 5.0
ENOUGH = 100
TRANSFERS = 3000
"""It goes on for so many seconds or transfers, and in any case until enough of them were loaded."""
AT_ONCE = 12
DEADLINE = 1.5

FAULTS = (
    Fault(FaultKind.CORRUPT, Way.DATA, every=1, probability=0.01),
    Fault(FaultKind.CORRUPT, Way.DATA, every=1, probability=0.01, offset=1000),
    Fault(FaultKind.DROP, Way.DATA, every=1, probability=0.0005),
    Fault(FaultKind.DELAY, Way.DATA, every=1, probability=0.02, seconds=0.02),
    Fault(FaultKind.RESET, Way.DATA, every=1, probability=0.001),
    Fault(FaultKind.CORRUPT, Way.CONTROL, every=1, probability=0.0005),
    Fault(FaultKind.DELAY, Way.CONTROL, every=1, probability=0.005, seconds=0.02),
    Fault(FaultKind.RESET, Way.CONTROL, every=1, probability=0.0005),
)
BY_DESIGN = {
    "cancelled", "corrupt", "deadline", "engine_lost", "handshake_failed", "no_capacity", "no_connector", "peer_lost",
    "peer_unreachable",
}  # fmt: skip
"""Reasons that these faults may end in."""

KEPT_BY_UCX = 5
"""Descriptors of a process, once, however many workers it had to destroy by force: their context is kept alive
(`destroy_worker`), and with it what UCX watches memory by."""


class Soak:
    """Two pods, and one random transfer after the other."""

    def __init__(self, prefill: Pod, decode: Pod, seed: int) -> None:
        self.prefill = prefill
        self.decode = decode
        self.outcomes: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._number = 0
        self._stop = 0.0
        self._gone: dict[ScriptedAgent, asyncio.Event] = {}

    async def run(self) -> None:
        self._stop = time.monotonic() + SECONDS
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._lane())
            group.create_task(self._restarts())

    def _goes_on(self) -> bool:
        if self._number >= TRANSFERS:
            return False
        return time.monotonic() < self._stop or self.outcomes["loaded"] <= ENOUGH

    async def _lane(self) -> None:
        while self._goes_on():
            self._number += 1
            await self._transfer(self._number)

    async def _restarts(self) -> None:
        """An engine dies now and then, and comes back."""
        while self._goes_on():
            await asyncio.sleep(SECONDS / 6)
            pod, role = self._chance.choice([(self.prefill, "prefill"), (self.decode, "decode")])
            old = pod.agent
            old.close()
            self._death(old).set()
            await until(lambda pod=pod: not pod.core.attached)
            agent = ScriptedAgent(old.directory, role, range(4), 4, {})
            assert isinstance(await agent.attach(), Attached)
            pod.agent = agent

    async def _transfer(self, number: int) -> None:
        chance = self._chance
        prompt = Prompt(chance.choice((1, 2, 127, 128, 129, chance.randrange(1, 600))), range(4), seed=number)
        name, giver, taker = transfer_id(number), self.prefill.agent, self.decode.agent
        both = not self._death(giver).is_set() and not self._death(taker).is_set()
        if not both:
            await asyncio.sleep(0.01)
            return
        steps = [
            lambda: self._offer(giver, name, prompt, number),
            lambda: taker.fetch(name, [self.prefill.peer], prompt.tokens, DEADLINE),
        ]
        chance.shuffle(steps)
        for step in steps:
            step()
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.02)
                if self._death(giver).is_set() or self._death(taker).is_set():
                    return
        if chance.random() < 0.08:
            await asyncio.sleep(chance.random() * 0.02)
            agent = chance.choice((giver, taker))
            if not self._death(agent).is_set():
                agent.cancel(name)
        sent, loaded = await self._end(giver, name), await self._end(taker, name)
        if isinstance(loaded, Loaded):
            assert same(taker, name, prompt)
            assert loaded.first_token == number
        elif loaded is not None:
            assert isinstance(loaded, LoadFailed) and loaded.reason in BY_DESIGN, loaded
        if isinstance(sent, Sent) and sent.committed:
            assert loaded is None or isinstance(loaded, Loaded)
        elif sent is not None:
            assert isinstance(sent, Sent) and sent.reason in BY_DESIGN, sent
        self.outcomes["loaded" if isinstance(loaded, Loaded) else "lost" if loaded is None else loaded.reason] += 1
        for agent, end in ((giver, sent), (taker, loaded)):
            assert agent.ends(name) == (end is not None)
            agent.told = [message for message in agent.told if getattr(message, "transfer_id", None) != name]
        taker.loaded.pop(name, None)

    def _offer(self, agent: ScriptedAgent, name: str, prompt: Prompt, number: int) -> None:
        agent.offer(name, prompt, layerwise=number % 2 == 0, seconds=DEADLINE)
        agent.announce(name)
        agent.seal(name, first_token=number)

    async def _end(self, agent: ScriptedAgent, name: str) -> object:
        """The report of this transfer; None if its engine died before."""
        dead = asyncio.ensure_future(self._death(agent).wait())
        end = asyncio.ensure_future(agent.end(name))
        await asyncio.wait((dead, end), return_when=asyncio.FIRST_COMPLETED)
        dead.cancel()
        if not end.done() and not agent.ends(name):
            end.cancel()
            return None
        return await end

    def _death(self, agent: ScriptedAgent) -> asyncio.Event:
        return self._gone.setdefault(agent, asyncio.Event())


def transport(pods: World, kind: str, seed: int) -> Transport:
    inner = UcxTransport(TransportKind.TCP) if kind == "ucx" else pods.network.transport()
    return FaultyTransport(inner, FaultPlan(FAULTS, seed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "policy"),
    [("memory", FailurePolicy.RECOMPUTE), ("memory", FailurePolicy.RETRY), ("ucx", FailurePolicy.RETRY)],
)
async def test_nothing_is_wrong_and_nothing_is_left(
    tmp_path: Path, kind: str, policy: FailurePolicy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kvferry_runtime.wire.receiver.LOSS_SECONDS", 0.2)
    caplog.set_level(logging.ERROR)
    tasks = asyncio.all_tasks()
    async with world(tmp_path) as warm_up:  # what is loaded once stays
        await warm_up.pod(Role.PREFILL, transport=transport(warm_up, kind, 0))
    (tmp_path / "pod-0").rename(tmp_path / "warm-up")
    descriptors = open_descriptors()
    async with world(tmp_path) as pods:
        prefill = await pods.pod(Role.PREFILL, failure_policy=policy, transport=transport(pods, kind, 1), tick=0.05)
        decode = await pods.pod(Role.DECODE, failure_policy=policy, transport=transport(pods, kind, 2), tick=0.05)
        soak = Soak(prefill, decode, seed=3)
        await soak.run()
        for pod in (prefill, decode):
            await until(lambda pod=pod: set(pod.slots()) <= {"slots", "free", "posted"} and not pod.core.open_transfers)
        await until(lambda: not living(OutgoingTransfer) and not living(IncomingTransfer))
    assert soak.outcomes["loaded"] > ENOUGH, soak.outcomes
    assert asyncio.all_tasks() == tasks
    assert open_descriptors() - descriptors in ((0, KEPT_BY_UCX) if kind == "ucx" else (0,))
    assert not [record.getMessage() for record in caplog.records if "defect" in record.getMessage()]


def living(kind: type) -> int:
    """Objects of this class that somebody still keeps."""
    gc.collect()
    return sum(type(item) is kind for item in gc.get_objects())


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
