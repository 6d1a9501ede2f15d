"""NVIDIA GPUs through torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvferry_runtime.agent.device.streams import Device, Event, Stream
from kvferry_runtime.errors import SettingsError

_FOR_ALL_CONTEXTS = 1
"""cudaHostRegisterPortable: pinned for every GPU, whichever is current in the calling thread."""


class CudaStream(Stream):
    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def wait(self, event: Event) -> None:
        self._stream.wait_event(event)

    def submit(self, work: Callable[[], None]) -> None:
        with torch.cuda.stream(self._stream):
            work()

    def record(self) -> Event:
        return _recorded(self._stream, timed=True)


class CudaDevice(Device):
    """device: a CUDA device of torch."""

    def __init__(self, device: torch.device) -> None:
        """Raises SettingsError: there is no such device."""
        if device.type != "cuda" or not torch.cuda.is_available():
            raise SettingsError(f"device {device}: no GPU that torch can use is there; use the agent for host memory")
        self._device = device

    @property
    def name(self) -> str:
        return str(self._device)

    def record_current(self) -> Event:
        return _recorded(torch.cuda.current_stream(self._device), timed=False)

    def stream(self) -> Stream:
        return CudaStream(self._device)

    def empty(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=self._device)

    def pinned(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(rows, columns, dtype=dtype, pin_memory=True)

    def upload(self, values: list[int], dtype: torch.dtype) -> torch.Tensor:
        """From pinned memory: from other memory torch would wait until all of the stream is done."""
        return torch.tensor(values, dtype=dtype).pin_memory().to(self._device, non_blocking=True)

    def register(self, address: int, size: int) -> None:
        status = torch.cuda.cudart().cudaHostRegister(address, size, _FOR_ALL_CONTEXTS)
        if int(status) != 0:
            raise OSError(f"cudaHostRegister of {size} bytes gave error {int(status)}")

    def unregister(self, address: int) -> None:
        torch.cuda.cudart().cudaHostUnregister(address)


def _recorded(stream: torch.cuda.Stream, *, timed: bool) -> Event:
    """Whoever waits for it sleeps: by default CUDA would keep a core busy."""
    event: Event = torch.cuda.Event(enable_timing=timed, blocking=True)
    stream.record_event(event)
    return event
