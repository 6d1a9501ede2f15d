"""What this container was given: locked memory, and the RDMA devices that it sees."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

INFINIBAND = Path("/sys/class/infiniband")
VERBS = Path("/dev/infiniband")
_STATUS = Path("/proc/self/status")
_IPC_LOCK = 14
"""Number of the capability that lifts the limit of locked memory."""


@dataclass(frozen=True, slots=True)
class Resources:
    """memlock_bytes: limit of locked memory, None without one. devices: of RDMA, sorted."""

    memlock_bytes: int | None
    devices: tuple[str, ...]


def found(infiniband: Path = INFINIBAND, verbs: Path = VERBS, status: Path = _STATUS) -> Resources:
    """What this process may use. A device is one that the kernel has and whose node is in this container."""
    return Resources(
        memlock_bytes=None if _may_lock_all(status) else limit(resource.RLIMIT_MEMLOCK),
        devices=_devices(infiniband, verbs),
    )


def limit(which: int) -> int | None:
    """The soft limit; None if there is none."""
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _devices(infiniband: Path, verbs: Path) -> tuple[str, ...]:
    """The kernel shows its devices to every container; only those with a node here can be opened."""
    if not infiniband.is_dir() or not any(verbs.glob("uverbs*")):
        return ()
    nodes = {node.name for node in verbs.glob("uverbs*")}
    return tuple(sorted(item.name for item in infiniband.iterdir() if nodes & _verbs_of(item)))


def _verbs_of(device: Path) -> set[str]:
    return {item.name for item in (device / "device" / "infiniband_verbs").glob("uverbs*")}


def _may_lock_all(status: Path) -> bool:
    """Whether the process has the capability in effect; it is inert for those who are not root."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return False
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _IPC_LOCK & 1)
