"""Numbers that kernels look up: they go to the device once, with the first work that needs them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvferry_runtime.agent.device.streams import Device, Event, Stream


class Uploaded:
    """Made by any thread, at no cost; used by the agent's thread alone."""

    def __init__(self, values: Sequence[int], dtype: torch.dtype) -> None:
        self._values = list(values)
        self._dtype = dtype
        self._tensor: torch.Tensor | None = None
        self._ready: Event | None = None

    @property
    def tensor(self) -> torch.Tensor:
        """[len(values)] on the device, for work on a stream that was made to wait."""
        assert self._tensor is not None, "numbers go to the device first"
        return self._tensor

    def await_on(self, device: Device, stream: Stream) -> None:
        """Let `stream` wait until the device has them; the first call sends them."""
        if self._ready is None:
            stream.submit(lambda: self._send(device))
            self._ready = stream.record()
        stream.wait(self._ready)

    def _send(self, device: Device) -> None:
        self._tensor = device.upload(self._values, self._dtype)
