"""Each kind of failure raises its own counters by one, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kvferry_contract.config import Role
from kvferry_runtime.ring.messages import LoadFailed, Sent
from kvferry_runtime.sidecar import session
from kvferry_runtime.transport.faulty import Fault, FaultKind, FaultPlan, FaultyTransport, Way
from kvferry_runtime.wire.messages import AnyMessage, Commit
from scripted_agent import Prompt
from sidecar_pods import TICK, Pod, World, transfer_id, until

NAME = transfer_id(1)
WATCHED = ("transfers_committed", "transfers_failed", "transfers_retried", "chunks_dropped", "dial_failures",
           "rejected_connections", "sessions_lost", "transport_fallbacks")  # fmt: skip


def raised(pod: Pod) -> dict[str, float]:
    """All counters of outcomes that are not 0, by name and labels."""
    found = {}
    for metric in pod.core.metrics.registry.collect():
        if metric.name.removeprefix("kvferry_") in WATCHED:
            for sample in metric.samples:
                if sample.value and sample.name.endswith("_total"):
                    found["/".join([metric.name.removeprefix("kvferry_"), *sample.labels.values()])] = sample.value
    return found


class AtCommit(FaultPlan):
    """Resets the connection when the message that would tell prefill of the end is due."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._due = False
        encode = session.encode

        def look(message: AnyMessage) -> bytes:
            self._due = isinstance(message, Commit)
            return encode(message)

        monkeypatch.setattr(session, "encode", look)

    def on_send(self, way: Way) -> tuple[Fault, ...]:
        return (Fault(FaultKind.RESET, Way.CONTROL),) if way is Way.CONTROL and self._due else ()


async def both_end(prefill: Pod, decode: Pod) -> None:
    assert isinstance(await prefill.agent.end(NAME), Sent)
    await decode.agent.end(NAME)


async def connection_refused(pods: World, _: pytest.MonkeyPatch) -> tuple[Pod, Pod]:
    prefill, decode = await pods.pair()
    decode.agent.fetch(NAME, ["127.0.0.1:9"], 100)
    assert isinstance(await decode.agent.end(NAME), LoadFailed)
    return prefill, decode


async def reset_in_mid_transfer(pods: World, _: pytest.MonkeyPatch) -> tuple[Pod, Pod]:
    plan = FaultPlan((Fault(FaultKind.RESET, Way.DATA, first=3),))
    prefill = await pods.pod(Role.PREFILL, transport=FaultyTransport(pods.network.transport(), plan))
    decode = await pods.pod(Role.DECODE)
    prefill.agent.send(NAME, Prompt(1000, range(4)))
    decode.agent.fetch(NAME, [prefill.peer], 1000)
    await both_end(prefill, decode)
    return prefill, decode


async def failed_handshake(pods: World, _: pytest.MonkeyPatch) -> tuple[Pod, Pod]:
    prefill, decode = await pods.pod(Role.PREFILL), await pods.pod(Role.DECODE, key=b"x" * 32)
    decode.agent.fetch(NAME, [prefill.peer], 100)
    assert isinstance(await decode.agent.end(NAME), LoadFailed)
    return prefill, decode


async def failed_notification(pods: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Pod, Pod]:
    prefill = await pods.pod(Role.PREFILL)
    decode = await pods.pod(Role.DECODE, transport=FaultyTransport(pods.network.transport(), AtCommit(monkeypatch)))
    prefill.agent.send(NAME, Prompt(1000, range(4)))
    decode.agent.fetch(NAME, [prefill.peer], 1000)
    await both_end(prefill, decode)
    return prefill, decode


async def lease_expired(pods: World, _: pytest.MonkeyPatch) -> tuple[Pod, Pod]:
    prefill, decode = await pods.pair()
    prefill.agent.offer(NAME, Prompt(100, range(4)), seconds=0.3)
    decode.agent.fetch(NAME, [prefill.peer], 100, seconds=0.3)
    await both_end(prefill, decode)
    return prefill, decode


Failure = Callable[[World, pytest.MonkeyPatch], Awaitable[tuple[Pod, Pod]]]
CASES: list[tuple[Failure, set[str], set[str]]] = [
    (connection_refused, set(), {"transfers_failed/receive/peer_unreachable", "dial_failures/peer_unreachable"}),
    (
        reset_in_mid_transfer,
        {"transfers_failed/send/peer_lost", "sessions_lost/send"},
        {"transfers_failed/receive/peer_lost", "sessions_lost/receive"},
    ),
    (
        failed_handshake,
        {"rejected_connections/by_peer"},
        {"transfers_failed/receive/handshake_failed", "dial_failures/handshake_failed"},
    ),
    (
        # decode has every byte and goes on; prefill never hears of it
        failed_notification,
        {"transfers_failed/send/peer_lost", "sessions_lost/send"},
        {"transfers_committed/receive", "sessions_lost/receive"},
    ),
    (lease_expired, {"transfers_failed/send/deadline"}, {"transfers_failed/receive/deadline"}),
]


@pytest.mark.parametrize(("failure", "at_prefill", "at_decode"), CASES, ids=[case[0].__name__ for case in CASES])
async def test_a_failure_is_counted_once_under_its_own_name(
    pods: World, monkeypatch: pytest.MonkeyPatch, failure: Failure, at_prefill: set[str], at_decode: set[str]
) -> None:
    """Case 45."""
    prefill, decode = await failure(pods, monkeypatch)
    for pod, expected in ((prefill, at_prefill), (decode, at_decode)):
        await until(lambda pod=pod, expected=expected: raised(pod).keys() >= expected)
    await asyncio.sleep(5 * TICK)
    assert raised(prefill) == dict.fromkeys(at_prefill, 1.0)
    assert raised(decode) == dict.fromkeys(at_decode, 1.0)
