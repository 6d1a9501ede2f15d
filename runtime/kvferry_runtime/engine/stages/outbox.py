"""What this stage has to say, from any thread, until the ring's thread takes it: bounded, activations copied."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvferry_runtime.engine.stages.activations import Buffers, check_sendable, describe
from kvferry_runtime.engine.stages.link_messages import Description
from kvferry_runtime.engine.stages.messages import AnyMessage
from kvferry_runtime.engine.stages.ring import Array

MAX_MESSAGES = 4096
"""The first stage has at most some hundred requests open, each with a few messages."""


@dataclass(frozen=True, slots=True)
class Letter:
    """buffer: with the activation's bytes, of `buffers`; None without one."""

    message: AnyMessage
    buffer: memoryview | None
    size: int
    description: Description | None


class Outbox:
    """wake: called, in the caller's thread, when there is something to take after there was nothing."""

    def __init__(self, buffers: Buffers, wake: Callable[[], None]) -> None:
        self._buffers = buffers
        self._wake = wake
        self._lock = threading.Lock()
        self._letters: deque[Letter] = deque()
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._letters)

    def put(self, message: AnyMessage, activation: Array | None) -> bool:
        """Whether there was room, also in a buffer for the activation; true once the box is closed.

        Raises:
            LayoutError: what cannot be sent at all.
        """
        check_sendable(message, activation, self._buffers.size)
        letter = self._letter(message, activation)
        if letter is None:
            return self._closed
        with self._lock:
            room = len(self._letters) < MAX_MESSAGES
            taken = room and not self._closed
            first = taken and not self._letters
            if taken:
                self._letters.append(letter)
        if not taken and letter.buffer is not None:
            self._buffers.give_back(letter.buffer)
        if first:
            self._wake()
        return room or self._closed

    def take(self) -> list[Letter]:
        """Everything, in order."""
        with self._lock:
            letters = list(self._letters)
            self._letters.clear()
        return letters

    def close(self) -> None:
        """Take nothing more, and drop what is there. Idempotent."""
        self._closed = True
        for letter in self.take():
            if letter.buffer is not None:
                self._buffers.give_back(letter.buffer)

    def _letter(self, message: AnyMessage, activation: Array | None) -> Letter | None:
        if activation is None:
            return Letter(message, None, 0, None)
        buffer = self._buffers.take()
        if buffer is None:
            return None
        copy = np.frombuffer(buffer, activation.dtype, activation.size).reshape(activation.shape)
        np.copyto(copy, activation)
        # of the original: what a defect here or in the network changes is found at the next stage
        return Letter(message, buffer, activation.nbytes, describe(activation))
