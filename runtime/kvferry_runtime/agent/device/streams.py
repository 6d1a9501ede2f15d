"""What the agent asks of a device: streams that work in order, events, memory that the device can reach.

`cuda.CudaDevice` is the one for GPUs. Nothing here waits, but `Event.synchronize`, which only the watch's thread calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in the order of one stream."""

    def synchronize(self) -> None:
        """Block this thread until the device has passed it; other threads run on. Raises what the device reported."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to a later one of the same stream, both passed, both `Stream.record`'s."""
        ...


class Stream(ABC):
    """A queue of the device's own, beside those of the engine. Only for the agent's thread."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """What is submitted from now on starts after `event`. The host does not wait."""

    @abstractmethod
    def submit(self, work: Callable[[], None]) -> None:
        """Queue what `work` asks of the device: torch calls that do not synchronise, and launches of kernels."""

    @abstractmethod
    def record(self) -> Event:
        """An event behind all that was submitted."""


class Device(ABC):
    """One GPU. Calls may come from any thread."""

    @property
    @abstractmethod
    def name(self) -> str:
        """As people call it."""

    @abstractmethod
    def record_current(self) -> Event:
        """An event behind all that this thread has queued on its current stream. For the engine's thread."""

    @abstractmethod
    def stream(self) -> Stream:
        """A new stream that does not wait for the default one."""

    @abstractmethod
    def empty(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """[size] on the device. Inside `Stream.submit` it may be dropped as soon as its last use is queued."""

    @abstractmethod
    def pinned(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """[rows, columns] of zeros in host memory that the device can write at any time."""

    @abstractmethod
    def upload(self, values: list[int], dtype: torch.dtype) -> torch.Tensor:
        """[len(values)] on the device, queued on the current stream of this thread."""

    @abstractmethod
    def register(self, address: int, size: int) -> None:
        """Let the device reach this host memory without a copy in between. May take a tenth of a second.

        Raises:
            OSError: the driver refused (a limit on locked memory, no such permission).
        """

    @abstractmethod
    def unregister(self, address: int) -> None:
        """Undo `register`. Only once the device no longer touches that memory."""
