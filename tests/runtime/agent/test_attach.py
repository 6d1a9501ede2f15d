"""How the agent finds its sidecar, and what makes it let go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eventually import eventually
from kv_settings import kv_layout, transfer_config
from kvferry_contract.config import Method, Role, Scale
from kvferry_runtime.agent.client import HostAgent
from kvferry_runtime.errors import CodecRefused, LayoutError, RingUnavailable, SettingsError
from kvferry_runtime.layout import KvDtype
from kvferry_runtime.ring import packets
from kvferry_runtime.ring.messages import PROTOCOL_VERSION, Attached, Beat, Refused
from scripted_sidecar import AgentGone, ScriptedSidecar

LAYOUT = kv_layout(3)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[HostAgent]:
    agent = HostAgent(tmp_path, Role.DECODE, transfer_config())
    yield agent
    agent.close(5.0)


def attached(agent: HostAgent) -> bool:
    """Wait until the agent says so."""
    return eventually(lambda: agent.state().attached, "attached")


def test_an_agent_says_who_it_is(agent: HostAgent, tmp_path: Path) -> None:
    agent.start(LAYOUT, {"model": "tiny", "revision": "r1"}, lambda: 0.25)
    with ScriptedSidecar(tmp_path) as sidecar:
        attach = sidecar.attach()
        assert attach.fingerprint == {"kv.layers": "3", "kv.shape": "2x2x8:bf16", "model": "tiny", "revision": "r1"}
        assert (attach.role, attach.version, attach.codecs) == ("decode", PROTOCOL_VERSION, ["none"])
        assert (attach.first_layer, attach.layer_count, attach.total_layers) == (0, 3, 3)
        assert attached(agent)
        assert sidecar._socket is not None
        beat = packets.decode_from_agent(sidecar._socket.recv(4096))
        assert beat == [Beat(250)]


def test_an_agent_that_compresses_says_what_it_can_decode(tmp_path: Path) -> None:
    agent = HostAgent(tmp_path, Role.PREFILL, transfer_config(method=Method.INT8))
    agent.start(LAYOUT, {}, lambda: 0.0)
    with ScriptedSidecar(tmp_path) as sidecar:
        assert set(sidecar.attach().codecs) == {"none", "int8"}
    agent.close(5.0)


def test_the_sidecar_may_come_later_go_and_come_again(agent: HostAgent, tmp_path: Path) -> None:
    agent.start(LAYOUT, {}, lambda: 0.0)
    boots = []
    for number in range(3):
        with ScriptedSidecar(tmp_path, slots=2 + number, boot_id=f"boot-{number}") as sidecar:
            boots.append(sidecar.attach().engine_boot_id)
            assert attached(agent)
    assert len(set(boots)) == 1


@pytest.mark.parametrize(
    "answer",
    [
        Attached(PROTOCOL_VERSION + 1, "boot-1", 4, 4096),
        Attached(PROTOCOL_VERSION, "boot-0", 4, 4096),
        Attached(PROTOCOL_VERSION, "boot-1", 5, 4096),
        Attached(PROTOCOL_VERSION, "boot-1", 4, 8192),
        Refused("another engine is attached"),
    ],
    ids=["version", "boot-id", "slots", "chunk-bytes", "refused"],
)
def test_an_answer_that_does_not_fit_is_no_attachment(
    agent: HostAgent, tmp_path: Path, answer: Attached | Refused
) -> None:
    agent.start(LAYOUT, {}, lambda: 0.0)
    with ScriptedSidecar(tmp_path) as sidecar:
        sidecar.accept()
        sidecar.send(answer)
        with pytest.raises(AgentGone):
            sidecar.receive()
        assert not agent.state().attached
        sidecar.attach()
        assert attached(agent)


def test_a_stale_ring_is_not_used(agent: HostAgent, tmp_path: Path) -> None:
    """The file of a dead sidecar is still there when the next one has not yet made its own."""
    with ScriptedSidecar(tmp_path, boot_id="boot-old"):
        pass
    agent.start(LAYOUT, {}, lambda: 0.0)
    with ScriptedSidecar(tmp_path, boot_id="boot-new") as sidecar:
        sidecar.attach()
        assert attached(agent)


def test_an_agent_starts_once(agent: HostAgent) -> None:
    agent.start(LAYOUT, {}, lambda: 0.0)
    with pytest.raises(RingUnavailable, match="already started"):
        agent.start(LAYOUT, {}, lambda: 0.0)


def test_a_token_that_fits_no_chunk_is_refused_at_start(agent: HostAgent) -> None:
    with pytest.raises(LayoutError, match=r"8192 bytes, a chunk holds 4096: raise transfer\.overlap\.chunkBytes"):
        agent.start(kv_layout(1, heads=16, head_dim=128), {}, lambda: 0.0)


@pytest.mark.parametrize(
    ("scale", "codec"), [(Scale.TOKEN_AND_HEAD, "fp8"), (Scale.HEAD, "fp8-head"), (Scale.TENSOR, "fp8-tensor")]
)
def test_the_object_chooses_the_scales_of_fp8(tmp_path: Path, scale: Scale, codec: str) -> None:
    agent = HostAgent(tmp_path, Role.PREFILL, replace(transfer_config(method=Method.FP8), scale=scale))
    agent.start(LAYOUT, {}, lambda: 0.0)
    with ScriptedSidecar(tmp_path) as sidecar:
        assert set(sidecar.attach().codecs) == {"none", codec}
    agent.close(5.0)


def test_opaque_caches_go_with_any_method(tmp_path: Path) -> None:
    """They are always sent exactly, so that a lossy method is no reason to refuse them."""
    agent = HostAgent(tmp_path, Role.PREFILL, transfer_config(method=Method.INT8))
    try:
        agent.start(kv_layout(1, dtype=KvDtype.UINT8), {}, lambda: 0.0)
    except CodecRefused:
        pytest.fail("refused")
    finally:
        agent.close(5.0)


def test_a_fingerprint_that_no_sidecar_would_read(agent: HostAgent) -> None:
    with pytest.raises(SettingsError, match="fingerprint cannot be sent"):
        agent.start(LAYOUT, {"model": "x" * 2000}, lambda: 0.0)


def test_close_without_start(tmp_path: Path) -> None:
    agent = HostAgent(tmp_path, Role.PREFILL, transfer_config())
    agent.close(1.0)
    with pytest.raises(RingUnavailable, match="closed"):
        agent.start(LAYOUT, {}, lambda: 0.0)
