"""Memory: how large the KV cache may be, and what the process takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from kvferry_runtime.engine.reference.kv import BLOCK_TOKENS, blocks_for
from kvferry_runtime.engine.reference.model import Model
from kvferry_runtime.errors import SettingsError

HOST_SHARE = 0.25
"""Of the memory that is free at start: several engines and their rings live on one machine in local mode."""
GPU_SHARE = 0.8
FULL_CONTEXTS = 32
"""More than this many requests of the longest kind are not worth reserving for."""
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def kv_blocks(model: Model, wanted: int | None) -> int:
    """Blocks of the cache: as wanted, else by the free memory.

    Raises:
        SettingsError: not even one block fits.
    """
    if wanted is not None:
        return wanted
    block_bytes = BLOCK_TOKENS * model.layout.bytes_per_token
    if model.device.type == "cuda":
        room = int(torch.cuda.mem_get_info(model.device)[0] * GPU_SHARE)
    else:
        room = int(free_host_bytes() * HOST_SHARE)
    blocks = min(room // block_bytes, FULL_CONTEXTS * blocks_for(model.max_positions))
    if blocks < 1:
        raise SettingsError(
            f"a KV block of 16 tokens takes {block_bytes} bytes, {room} are to spare: give the engine more memory"
        )
    return blocks


def free_host_bytes(meminfo: str = "/proc/meminfo", limits: Sequence[str] = _CGROUP_LIMITS) -> int:
    """What the machine has available, or what is left of this container's limit if that is less."""
    lines = dict(line.split(":", 1) for line in Path(meminfo).read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    own = _own_bytes()
    left = (max(0, limit - own) for path in limits if (limit := _limit(Path(path))) is not None)
    return min([available, *left])


def resident_bytes() -> int:
    """Memory of this process, what it uses of mapped files included."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _own_bytes() -> int:
    """Memory of this process that the kernel cannot take back. What is mapped from files it can."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return None if text == "max" else int(text)
