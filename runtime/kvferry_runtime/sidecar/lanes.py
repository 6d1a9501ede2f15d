"""Whether an endpoint's lanes are of the kind that was asked for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvferry_contract.config import TransportKind
from kvferry_runtime.transport.base import Lane

_RDMA = ("rc", "dc", "ud", "srd", "gga")
_SHARED_MEMORY = ("posix", "sysv", "xpmem", "cma", "knem", "memory", "self")


def describe(lanes: Sequence[Lane]) -> tuple[str, ...]:
    """As `transport:device`, each once."""
    return tuple(dict.fromkeys(f"{lane.transport}:{lane.device}" for lane in lanes))


def fallback(kind: TransportKind, lanes: Sequence[Lane]) -> str | None:
    """What is wrong with these lanes when `kind` was asked for; None if nothing is."""
    families = {lane.transport.split("_")[0] for lane in lanes}
    wanted = {TransportKind.RDMA: _RDMA, TransportKind.SHM: _SHARED_MEMORY}.get(kind)
    if wanted is None or families & set(wanted):
        return None
    found = ", ".join(describe(lanes)) or "none"
    return (
        f"transfer.transport is {kind.value}, but the endpoint's lanes are {found}: check the devices of both pods, or "
        "set transfer.onFallback to Warn or transfer.transport to auto"
    )
