"""What the checks run on: a GPU, or a stand-in with sizes for an interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from device_engines import CudaGpu, Gpu, StandInGpu
from stand_in_device import StandInDevice


@dataclass(frozen=True)
class Machine:
    """megabyte: what checks take for 2^20 bytes, less in a dry run. rounds: of each measurement."""

    name: str
    gpu: Gpu
    dry: bool
    megabyte: int
    rounds: int

    def seconds(self, work: Callable[[], object]) -> float:
        """Median time that the device takes for `work`, queued on the current stream, once it is warm."""
        for _ in range(0 if self.dry else 2):
            work()
        times = []
        for _ in range(self.rounds):
            times.append(_on_host(work) if self.dry else _on_device(work))
        return sorted(times)[len(times) // 2]

    def synchronize(self) -> None:
        if not self.dry:
            torch.cuda.synchronize()

    def close(self) -> None:
        if isinstance(self.gpu.device, StandInDevice):
            self.gpu.device.close()


def cuda_machine() -> Machine:
    gpu = CudaGpu()
    return Machine(torch.cuda.get_device_name(gpu.where), gpu, dry=False, megabyte=1 << 20, rounds=20)


def dry_machine() -> Machine:
    return Machine("stand-in", StandInGpu(), dry=True, megabyte=16 << 10, rounds=1)


def _on_host(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _on_device(work: Callable[[], object]) -> float:
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begun.record()
    work()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1000
