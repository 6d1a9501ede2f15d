"""Random, truncated and hostile bytes on the real peer port: closed, counted, no large allocation, still serving."""

from __future__ import annotations

import asyncio
import tracemalloc

from hostile_inputs import Marker, frames, throw
from kvferry_contract.config import Role, TransportKind
from kvferry_runtime.ring.messages import Loaded
from kvferry_runtime.transport.ucx import UcxTransport
from kvferry_runtime.wire.handshake import Refusal
from scripted_agent import Prompt
from sidecar_pods import Pod, World, transfer_id, until


def refused(pod: Pod) -> float:
    return sum(pod.metric("rejected_connections_total", reason=refusal.value) for refusal in Refusal)


async def test_hostile_bytes(pods: World) -> None:
    """Case 47."""
    prefill = await pods.pod(Role.PREFILL, transport=UcxTransport(TransportKind.TCP), tick=0.2)
    decode = await pods.pod(Role.DECODE, transport=UcxTransport(TransportKind.TCP), tick=0.2)
    marker = Marker(pods.directory / "unpickled")
    inputs = frames(marker)
    tracemalloc.start()
    for start in range(0, len(inputs), 16):
        await asyncio.gather(*(throw(prefill.core.address, data) for data in inputs[start : start + 16]))
    await until(lambda: refused(prefill) == len(inputs))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
    assert not marker.path.exists()
    assert prefill.core.state()["sessions"] == []
    prefill.agent.send(transfer_id(1), Prompt(100, range(4)))
    decode.agent.fetch(transfer_id(1), [prefill.peer], 100)
    assert isinstance(await decode.agent.end(transfer_id(1)), Loaded)
