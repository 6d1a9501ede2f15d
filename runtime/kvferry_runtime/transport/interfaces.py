"""Which network interfaces, addresses and RDMA devices this process sees now."""

from __future__ import annotations

import socket
from pathlib import Path

ADDRESS_TABLES = (Path("/proc/net/fib_trie"), Path("/proc/net/if_inet6"))
RDMA_DEVICES = Path("/sys/class/infiniband")


def network_snapshot() -> tuple[str, ...]:
    """Equal to an earlier one as long as no interface, address or device came or went."""
    names = [name for _, name in socket.if_nameindex()]
    tables = [_text(path) for path in ADDRESS_TABLES]
    devices = sorted(path.name for path in RDMA_DEVICES.iterdir()) if RDMA_DEVICES.is_dir() else []
    return (*names, *tables, *devices)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
