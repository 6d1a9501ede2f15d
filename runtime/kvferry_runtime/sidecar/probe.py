"""What this pod can do: limits, memory, devices, and which lanes UCX really gives to a connection with itself."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvferry_contract.config import TransportKind
from kvferry_runtime.errors import KvferryError
from kvferry_runtime.sidecar import lanes, resources
from kvferry_runtime.transport.base import Connection, Lane, Transport

TRY_SECONDS = 5.0


async def probe(
    make_transport: Callable[[TransportKind], Transport], host: str, ring_directory: Path
) -> dict[str, Any]:
    """All findings, for JSON; what cannot be done is a finding and no error."""
    kinds = (TransportKind.TCP, TransportKind.SHM, TransportKind.RDMA, TransportKind.AUTO)
    given = resources.found()
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "memlock_bytes": given.memlock_bytes,
        "open_files": resources.limit(resource.RLIMIT_NOFILE),
        "ring": _space(ring_directory),
        "rdma_devices": list(given.devices),
        "transports": {kind.value: await _try(make_transport, kind, host) for kind in kinds},
    }


async def _try(make_transport: Callable[[TransportKind], Transport], kind: TransportKind, host: str) -> dict[str, Any]:
    """Connect to ourselves by this kind of transport."""
    try:
        transport = make_transport(kind)
    except KvferryError as error:
        return {"usable": False, "lanes": [], "message": str(error)}
    try:
        async with asyncio.timeout(TRY_SECONDS):
            found = await _lanes(transport, host)
    except KvferryError as error:
        return {"usable": False, "lanes": [], "message": str(error)}
    except TimeoutError:
        return {"usable": False, "lanes": [], "message": f"no connection to {host} within {TRY_SECONDS:g} s"}
    finally:
        await transport.close()
    problem = lanes.fallback(kind, found)
    return {"usable": problem is None, "lanes": list(lanes.describe(found)), "message": problem or ""}


async def _lanes(transport: Transport, host: str) -> tuple[Lane, ...]:
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await transport.listen(host, 0, accepted.put_nowait)
    near = await transport.connect(*listener.address, TRY_SECONDS)
    far = await accepted.get()
    await asyncio.gather(
        near.open_data(far.data_address(), TRY_SECONDS), far.open_data(near.data_address(), TRY_SECONDS)
    )
    return near.lanes()


def _space(directory: Path) -> dict[str, Any]:
    try:
        found = os.statvfs(directory)
    except OSError as error:
        return {"directory": str(directory), "message": error.strerror}
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return {"directory": str(directory), "bytes": size, "free_bytes": free}
