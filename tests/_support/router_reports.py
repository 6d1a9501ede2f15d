"""Reports of a router on the pods of a simulated cluster."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from kvferry_contract.config import Role
from kvferry_contract.pairs import Pair, PairState, Report, SidecarFacts
from simulated_cluster import SimulatedCluster


def pair(prefill: str, decode: str, **changes: Any) -> Pair:
    proved = Pair(
        prefill=prefill,
        decode=decode,
        revision="",
        state=PairState.VERIFIED,
        reason="",
        message="",
        changed_unix=1.0,
        transfer_id="ab" * 16,
        bytes_raw=4096,
        bytes_wire=2048,
        chunks=4,
        codec="fp8",
        lanes=("tcp:eth0",),
    )
    return replace(proved, **changes)


def facts(pod: str, role: str = "prefill", **changes: Any) -> SidecarFacts:
    plain = SidecarFacts(
        pod=pod,
        role=role,
        fingerprint="f1",
        memlock_bytes=None,
        devices=(),
        lanes=("tcp:eth0",),
        sent=0,
        bytes_raw=0,
        bytes_wire=0,
        wire_seconds=0.0,
        hidden_seconds=0.0,
        max_relative_error=None,
    )
    return replace(plain, **changes)


def report(cluster: SimulatedCluster, pair_changes: dict[str, Any] | None = None, **sender: Any) -> Report:
    """Every pair of first pods of the newest revision, and the facts of every pod; sender: of prefill's sidecars."""
    devices = {"devices": sender["devices"]} if "devices" in sender else {}
    pods = {role: sorted(name for name in cluster.pods if f"-{role}-" in name) for role in (Role.PREFILL, Role.DECODE)}
    first = {role: [name for name in found if "-s0-" in name] for role, found in pods.items()}
    return Report(
        started_unix=0.0,
        pairs=tuple(pair(*names, **(pair_changes or {})) for names in product(first[Role.PREFILL], first[Role.DECODE])),
        sidecars=(
            *(facts(name, "prefill", **sender) for name in pods[Role.PREFILL]),
            *(facts(name, "decode", **devices) for name in pods[Role.DECODE]),
        ),
        routed={},
    )
