"""Which settings a UCX context gets."""

from __future__ import annotations

import pytest

from kvferry_contract.config import TransportKind
from kvferry_runtime.transport.ucx_settings import context_options


@pytest.mark.parametrize("kind", TransportKind)
def test_large_segments_for_every_kind(kind: TransportKind) -> None:
    options = context_options(kind, {})
    assert options["TCP_TX_SEG_SIZE"] == options["TCP_RX_SEG_SIZE"] == "1M"


def test_tcp_is_pinned_only_where_tcp_is_asked_for() -> None:
    assert context_options(TransportKind.TCP, {})["TLS"] == "tcp"
    for kind in (TransportKind.AUTO, TransportKind.RDMA):
        assert context_options(kind, {})["TLS"].startswith("^")


@pytest.mark.parametrize(("kind", "allowed"), [("auto", True), ("shm", True), ("tcp", False), ("rdma", False)])
def test_shared_memory_lanes_only_where_they_are_wanted(kind: str, allowed: bool) -> None:
    assert ("MM_ERROR_HANDLING" in context_options(TransportKind(kind), {})) is allowed


@pytest.mark.parametrize("kind", TransportKind)
def test_what_a_person_set_wins(kind: TransportKind) -> None:
    environment = {"UCX_TLS": "tcp,cuda", "UCX_TCP_TX_SEG_SIZE": "64K", "UCX_NET_DEVICES": "eth0", "PATH": "/bin"}
    options = context_options(kind, environment)
    assert not {f"UCX_{name}" for name in options} & set(environment)
    assert options == {
        name: value for name, value in context_options(kind, {}).items() if f"UCX_{name}" not in environment
    }
