"""Whether RDMA can work in this container, before it is tried. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvferry_contract.config import TransportKind
from kvferry_runtime.sidecar.resources import Resources

_RDMA_TRANSPORT = re.compile(r"(rc|dc|ud|ib|srd|gga)(_\w+)?")


def demanded(transport: TransportKind, environment: Mapping[str, str]) -> bool:
    """Whether RDMA is asked for: by `transfer.transport`, or, where that leaves the choice, by UCX's variables."""
    if transport is not TransportKind.AUTO:
        return transport is TransportKind.RDMA
    transports, devices = (_items(environment.get(name, "")) for name in ("UCX_TLS", "UCX_NET_DEVICES"))
    # an RDMA device is named with its port, `mlx5_0:1`, a network interface by its name alone
    return any(map(_RDMA_TRANSPORT.fullmatch, transports)) or any(":" in device for device in devices)


def problems(resources: Resources, ring_bytes: int) -> tuple[str, ...]:
    """What stands in the way of RDMA, each with the way out. ring_bytes: what has to be locked for the device."""
    found: list[str] = []
    if not resources.devices:
        found.append(
            "RDMA is asked for, but this container sees no RDMA device: set prefill.rdma and decode.rdma to the device "
            "plugin's resource (mode devicePlugin), or transfer.transport to auto or tcp"
        )
    locked = resources.memlock_bytes
    if locked is not None and locked < ring_bytes:
        found.append(
            f"RDMA is asked for, but this container may lock {locked} bytes of memory (RLIMIT_MEMLOCK) and its ring "
            f"has {ring_bytes}: raise the limit of the node's container runtime (LimitMEMLOCK=infinity in its systemd "
            "unit), lower transfer.bufferBytes, or set transfer.transport to tcp"
        )
    return tuple(found)


def _items(text: str) -> list[str]:
    """Of a list in UCX's way; one that begins with `^` says what is not wanted."""
    return [] if text.startswith("^") else [item.strip() for item in text.split(",") if item.strip()]
