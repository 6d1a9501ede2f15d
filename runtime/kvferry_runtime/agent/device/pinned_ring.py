"""The ring's slots as a device reaches them: registered with the driver where it allows that, else by staged copies."""

from __future__ import annotations

import logging
import threading

import torch

from kvferry_runtime.agent.device.streams import Device
from kvferry_runtime.agent.in_flight import InFlight
from kvferry_runtime.codec.device.base import STATUS_WORDS
from kvferry_runtime.ring.memory import RingMemory

REGISTER_SECONDS = 5.0
"""How long the first chunk waits for the driver to register the ring. 256 MiB take about a tenth of a second."""

_log = logging.getLogger(__name__)


class PinnedRing:
    """One mapping of a ring. It stays mapped, and registered, until nothing that the device was asked for touches it.

    registered: whether the driver has registered it.

    Without registration everything works, but a copy blocks the agent's thread until the device is done with it.
    """

    def __init__(self, device: Device, ring: RingMemory) -> None:
        self.ring = ring
        self.in_flight = InFlight()
        self._device = device
        payloads = [torch.frombuffer(ring.slot_payload(slot), dtype=torch.uint8) for slot in range(ring.slots)]
        self._payloads = payloads
        self._statuses = device.pinned(ring.slots, STATUS_WORDS, torch.int32)
        self._address = payloads[0].data_ptr()
        self._size = payloads[-1].data_ptr() + payloads[-1].numel() - self._address
        self._registration = threading.Thread(target=self._register, name="kvferry-register-ring", daemon=True)
        self._lock = threading.Lock()
        self._released = False
        self.registered = False
        self._registration.start()

    def await_registration(self) -> None:
        """Wait for the driver, at most `REGISTER_SECONDS`, the first time."""
        if self._registration.is_alive():
            self._registration.join(REGISTER_SECONDS)
            if self._registration.is_alive():
                _log.warning(
                    "the driver takes more than %s s to register the ring; copies are staged", REGISTER_SECONDS
                )

    def payload(self, slot: int, size: int) -> torch.Tensor:
        """uint8 [size], the front of a slot's payload in host memory."""
        return self._payloads[slot][:size]

    def status(self, slot: int) -> torch.Tensor:
        """int32 [2] in host memory, for what a kernel says of the chunk in this slot."""
        return self._statuses[slot]

    def close(self) -> None:
        """Let go of the mapping as soon as the device has. Idempotent."""
        self.in_flight.close(self._release)

    def _register(self) -> None:
        """In a thread of its own, which alone waits for the driver. It may end after the ring was closed."""
        mapping = self._payloads[0]
        try:
            self._device.register(self._address, self._size)
        except (OSError, RuntimeError) as error:
            _log.warning(
                "the ring cannot be registered with the device, copies to and from it are staged: %s; "
                "raise the container's limit on locked memory", error,
            )  # fmt: skip
            return
        with self._lock:
            self.registered = not self._released
        if self._released:
            self._device.unregister(self._address)
        del mapping

    def _release(self) -> None:
        with self._lock:
            self._released = True
        if self.registered:
            self.registered = False
            self._device.unregister(self._address)
        self._payloads = []
