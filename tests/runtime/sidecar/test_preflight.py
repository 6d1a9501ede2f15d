"""What a sidecar finds out before it tries RDMA."""

from __future__ import annotations

from pathlib import Path

import pytest

from kv_settings import transfer_config
from kvferry_contract.config import OnFallback, Role, TransportKind
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.sidecar import preflight, process, resources
from kvferry_runtime.sidecar.resources import Resources
from kvferry_runtime.sidecar.settings import SidecarSettings

RING = 256 << 20
GOOD = Resources(memlock_bytes=None, devices=("mlx5_0",))


@pytest.mark.parametrize(
    ("transport", "environment", "asked"),
    [
        (TransportKind.RDMA, {}, True),
        (TransportKind.AUTO, {}, False),
        (TransportKind.TCP, {"UCX_NET_DEVICES": "mlx5_0:1"}, False),
        (TransportKind.SHM, {"UCX_TLS": "rc"}, False),
        (TransportKind.AUTO, {"UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1"}, True),
        (TransportKind.AUTO, {"UCX_NET_DEVICES": "eth0"}, False),
        (TransportKind.AUTO, {"UCX_NET_DEVICES": "all"}, False),
        (TransportKind.AUTO, {"UCX_TLS": "tcp,sm"}, False),
        (TransportKind.AUTO, {"UCX_TLS": "rc_mlx5,tcp"}, True),
        (TransportKind.AUTO, {"UCX_TLS": "dc_x"}, True),
        (TransportKind.AUTO, {"UCX_TLS": "^rc,ud"}, False),
    ],
)
def test_when_rdma_is_asked_for(transport: TransportKind, environment: dict[str, str], asked: bool) -> None:
    assert preflight.demanded(transport, environment) == asked


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (GOOD, []),
        (Resources(RING, ("mlx5_0",)), []),
        (Resources(8 << 20, ("mlx5_0",)), [("8388608", "268435456", "LimitMEMLOCK")]),
        (Resources(None, ()), [("no RDMA device", "devicePlugin")]),
        (Resources(0, ()), [("no RDMA device",), ("lock 0 bytes",)]),
    ],
    ids=["all well", "just enough", "too little memory", "no device", "neither"],
)
def test_each_problem_names_numbers_and_the_way_out(found: Resources, said: list[tuple[str, ...]]) -> None:
    problems = preflight.problems(found, RING)
    assert len(problems) == len(said)
    assert all(word in problem for problem, words in zip(problems, said, strict=True) for word in words)


def settings(folder: Path, transport: TransportKind, on_fallback: OnFallback) -> SidecarSettings:
    return SidecarSettings(
        role=Role.PREFILL,
        group="ns/pod",
        host="192.0.2.1",  # not an address of this machine: what gets that far fails there
        peer_port=0,
        http_port=0,
        ring_directory=folder,
        key=b"k" * 32,
        slots=4,
        transfer=transfer_config(transport=transport, on_fallback=on_fallback),
        drain_seconds=1.0,
    )


@pytest.mark.parametrize(
    ("transport", "policy", "ends"),
    [
        (TransportKind.RDMA, OnFallback.FAIL, True),
        (TransportKind.RDMA, OnFallback.WARN, False),
        (TransportKind.AUTO, OnFallback.FAIL, False),
    ],
)
def test_a_sidecar_that_must_have_rdma_ends_with_one_line_and_others_tell(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    transport: TransportKind,
    policy: OnFallback,
    ends: bool,
) -> None:
    monkeypatch.setattr(resources, "found", lambda: Resources(8 << 20, ()))
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1")
    with pytest.raises(SettingsError) as caught:
        process.run(settings(tmp_path, transport, policy))
    assert ("no RDMA device" in str(caught.value)) == ends
    assert ("no RDMA device" in caplog.text) != ends
    assert "\n" not in str(caught.value)


def device(folder: Path, name: str, verbs: str) -> None:
    (folder / name / "device" / "infiniband_verbs" / verbs).mkdir(parents=True)


def test_devices_are_those_with_a_node_in_this_container(tmp_path: Path) -> None:
    """The kernel shows its devices in every container; the device plugin puts in the nodes of those that were given."""
    kernel, nodes, status = tmp_path / "infiniband", tmp_path / "dev", tmp_path / "status"
    assert resources.found(kernel, nodes, status).devices == ()
    for name, verbs in (("mlx5_1", "uverbs1"), ("mlx5_0", "uverbs0"), ("mlx5_2", "uverbs2")):
        device(kernel, name, verbs)
    assert resources.found(kernel, nodes, status).devices == ()
    nodes.mkdir()
    for node in ("uverbs0", "uverbs1", "rdma_cm"):
        (nodes / node).touch()
    assert resources.found(kernel, nodes, status).devices == ("mlx5_0", "mlx5_1")


def test_a_process_that_may_lock_all_memory_has_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "limit", lambda which: 8 << 20)
    status = tmp_path / "status"
    status.write_text("Name:\tsidecar\nCapEff:\t0000000000004000\n")
    assert resources.found(status=status).memlock_bytes is None
    status.write_text("Name:\tsidecar\nCapEff:\t00000000a80425fb\n")
    assert resources.found(status=status).memlock_bytes == 8 << 20
