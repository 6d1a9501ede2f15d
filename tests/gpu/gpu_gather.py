"""How fast blocks reach slots of the ring in host memory, and whether a ring can be registered at all."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from gpu_machine import Machine
from gpu_speed import PagedLayer, paged_layer

from kvferry_runtime.agent.device.pinned_ring import PinnedRing
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.codec.device.base import STATUS_WORDS, DeviceCodec
from kvferry_runtime.codec.device.registry import device_codecs
from kvferry_runtime.ring.memory import RingMemory

SLOTS, SLOT_MB = 8, 4
BLOCK_TOKENS = (16, 32, 64, 128)


def check(machine: Machine) -> Iterator[Figure]:
    """`gpu.ring.registered` (1 or 0), `gpu.ring.register_s`; `gpu.gather.<tokens>.<order>` in GB/s of raw bytes into
    slots, against a copy of contiguous memory into pinned memory; the same encoded: `gpu.encode_to_slot.<method>`."""
    size = SLOT_MB * machine.megabyte
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        ring = RingMemory.create(Path(folder), SLOTS, size, "boot")
        begun = time.perf_counter()
        pinned = PinnedRing(machine.gpu.device, ring)
        pinned.await_registration()
        yield Figure("gpu.ring.register_s", time.perf_counter() - begun, "s", None, None, 1)
        yield Figure("gpu.ring.registered", float(pinned.registered), "bool", None, None, 1)
        try:
            yield from _figures(machine, pinned, size)
        finally:
            machine.synchronize()
            pinned.close()
            ring.close()


def _figures(machine: Machine, pinned: PinnedRing, size: int) -> Iterator[Figure]:
    where, codecs = machine.gpu.where, device_codecs()
    out = torch.empty(size, dtype=torch.uint8, device=where)
    host = machine.gpu.device.pinned(1, size, torch.uint8)[0]
    limit = size / machine.seconds(lambda: host.copy_(out, non_blocking=True)) / 1e9
    slot = pinned.payload(0, size)
    plain = size / machine.seconds(lambda: slot.copy_(out, non_blocking=True)) / 1e9
    yield Figure("gpu.copy_to_slot", plain, "GB/s", limit, plain / limit, machine.rounds)
    none = codecs["none"]
    for tokens in BLOCK_TOKENS[:1] if machine.dry else BLOCK_TOKENS:
        for order in ("contiguous", "shuffled"):
            layer = paged_layer(machine, size, tokens, order == "shuffled")
            speed = _to_slot(machine, none, layer, slot)
            yield Figure(f"gpu.gather.{tokens}.{order}", speed, "GB/s", limit, speed / limit, machine.rounds)
    layer = paged_layer(machine, size)
    for name, codec in codecs.items():
        if codec.fixed_ratio and codec is not none:
            speed = _to_slot(machine, codec, layer, slot)
            yield Figure(f"gpu.encode_to_slot.{name}", speed, "GB/s", limit, speed / limit, machine.rounds)


def _to_slot(machine: Machine, codec: DeviceCodec, layer: PagedLayer, slot: torch.Tensor) -> float:
    """GB/s of raw bytes, gathered, encoded and copied into the slot."""
    length = codec.max_wire_bytes(layer.shape)
    out = torch.empty(length, dtype=torch.uint8, device=machine.gpu.where)
    status = torch.empty(STATUS_WORDS, dtype=torch.int32, device=machine.gpu.where)

    def work() -> None:
        codec.encode(layer.rows, layer.shape, out, status)
        slot[:length].copy_(out, non_blocking=True)

    return layer.shape.raw_bytes / machine.seconds(work) / 1e9
