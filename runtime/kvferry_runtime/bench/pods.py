"""What every benchmark's pods are made of: a folder in memory, a configuration, an environment."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvferry_contract import env
from kvferry_contract.config import (
    VERSION,
    FailurePolicy,
    GroupConfig,
    Integrity,
    Method,
    ModelConfig,
    OnFallback,
    OverlapMode,
    Role,
    RuntimeConfig,
    TransferConfig,
    TransportKind,
)
from kvferry_contract.split import WHOLE, Split

AUTO_METHODS = (Method.NONE, Method.LOSSLESS, Method.INT8, Method.FP8)
"""Among which `auto` may choose here."""
SIDECAR = ("-m", "kvferry_runtime", "sidecar")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod runs. prefix: of its commands."""

    address: str
    prefix: tuple[str, ...]
    variables: Mapping[str, str]


def on_loopback() -> tuple[Place, Place]:
    """Two addresses of a network that no other benchmark is likely to use."""
    network = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(256)}"
    return Place(f"{network}.1", (), {}), Place(f"{network}.2", (), {})


@dataclass(frozen=True, slots=True)
class Rings:
    """What both sidecars are told. Sizes in bytes."""

    transport: TransportKind
    chunk_bytes: int
    inflight_chunks: int
    buffer_bytes: int


RINGS = Rings(TransportKind.TCP, chunk_bytes=4 << 20, inflight_chunks=4, buffer_bytes=64 << 20)
"""What is measured unless something else is asked for. TCP, since that is what raw TCP can be compared with."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for rings and logs, in memory where there is one for it; removed at the end."""
    shared = Path("/dev/shm")  # noqa: S108
    folder = Path(tempfile.mkdtemp(prefix="kvferry-bench-", dir=shared if shared.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def runtime_config(
    role: Role,
    method: Method,
    overlap: OverlapMode,
    rings: Rings,
    timeout_seconds: float,
    split: Split = WHOLE,
    stage: int = 0,
) -> RuntimeConfig:
    """Nothing is kept exact and no error is too large: what is measured is the method. split: of both roles."""
    transfer = TransferConfig(
        transport=rings.transport,
        on_fallback=OnFallback.WARN,
        method=method,
        auto_methods=AUTO_METHODS,
        keep_exact_first=0,
        keep_exact_last=0,
        max_relative_error=1.0,
        overlap=overlap,
        inflight_chunks=rings.inflight_chunks,
        chunk_bytes=rings.chunk_bytes,
        buffer_bytes=rings.buffer_bytes,
        integrity=Integrity.DIGEST,
        failure_policy=FailurePolicy.FAIL,
        timeout_seconds=timeout_seconds,
    )
    group = GroupConfig("bench", "bench", "bench", role, stage, split, split, 1)
    return RuntimeConfig(VERSION, ModelConfig("file:///bench", "", "bench", "/bench"), group, transfer, 1.0)


def variables_of(folder: Path, place: Place, config: RuntimeConfig) -> dict[str, str]:
    """The environment of this pod's processes; makes its folder, its configuration and the key that all pods share."""
    group = config.group
    pod = folder / f"{group.role.value}-s{group.stage}"
    pod.mkdir()
    file, key = pod / "config.json", folder / "key"
    file.write_text(config.to_json())
    if not key.exists():
        key.write_text(secrets.token_hex(32))
    return {
        env.CONFIG: str(file),
        env.ROLE: group.role.value,
        env.RING_DIR: str(pod),
        env.KEY_FILE: str(key),
        env.POD_IP: place.address,
        env.POD_NAME: f"bench-{pod.name}-0",
        env.LOG_LEVEL: "warning",
        **place.variables,
    }
