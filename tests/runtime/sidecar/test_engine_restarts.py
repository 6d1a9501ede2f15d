"""An engine that comes back while something of its predecessor is under way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvferry_contract.config import Role
from kvferry_runtime.ring.messages import Attached, Loaded, LoadFailed
from kvferry_runtime.transport.faulty import Fault, FaultKind, FaultPlan, FaultyTransport, Way
from scripted_agent import Prompt, ScriptedAgent
from sidecar_pods import Pod, World, same, transfer_id, until


async def restart(pod: Pod, role: Role, **attach: Any) -> ScriptedAgent:
    """Another engine process attaches in place of this one."""
    pod.agent.close()
    await until(lambda: not pod.core.attached)
    pod.agent = ScriptedAgent(pod.agent.directory, role.value, range(4), 4, attach)
    assert isinstance(await pod.agent.attach(), Attached)
    return pod.agent


@pytest.mark.parametrize("restarted", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize("model", ["m", "another"])
async def test_a_handshake_does_not_outlive_the_fingerprint_that_it_proved(
    pods: World, restarted: Role, model: str
) -> None:
    """The engine is replaced between HELLO and READY: its successor must not get the other model's KV."""
    plan = FaultPlan((Fault(FaultKind.DELAY, Way.CONTROL, first=0, seconds=0.1),))
    slow = FaultyTransport(pods.network.transport(), plan)
    prefill = await pods.pod(Role.PREFILL, transport=slow)
    decode = await pods.pod(Role.DECODE)
    prompt = Prompt(300, range(4))
    decode.agent.fetch(transfer_id(1), [prefill.peer], 300)
    await until(lambda: plan.sent[Way.CONTROL] == 1)
    await restart(prefill if restarted is Role.PREFILL else decode, restarted, fingerprint={"model": model})
    if restarted is Role.DECODE:
        decode.agent.fetch(transfer_id(2), [prefill.peer], 300)
    name = transfer_id(2 if restarted is Role.DECODE else 1)
    prefill.agent.send(name, prompt)
    end = await decode.agent.end(name)
    if model == "m":
        assert isinstance(end, Loaded) and same(decode.agent, name, prompt)
    else:
        assert isinstance(end, LoadFailed)
        assert not any(pod.core.state()["sessions"] for pod in (prefill, decode))


async def test_an_engine_that_never_stops_talking_does_not_stop_the_loop(pods: World) -> None:
    """PINGs must go out however much the agent says."""
    pod = await pods.pod(Role.PREFILL)
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 10_000 <= pod.core.state()["engine_age_ms"] < 20_000
        asyncio.get_running_loop().call_soon(turn)

    for _ in range(500):
        pod.agent.beat(10_000)
    pod.agent.beat(20_000)
    turn()
    await until(lambda: pod.core.state()["engine_age_ms"] >= 20_000)
    assert turns > 5
