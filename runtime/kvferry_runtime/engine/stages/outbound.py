"""The way to the next stage: a message, and with it its activation."""

from __future__ import annotations

from collections.abc import Callable

from kvferry_runtime.engine.stages.activations import Buffers
from kvferry_runtime.engine.stages.link import Link
from kvferry_runtime.engine.stages.link_messages import Carry
from kvferry_runtime.engine.stages.outbox import Letter
from kvferry_runtime.errors import TransportError


class Outbound:
    """Numbers the activations of one link, and gives their buffers back once the transport is done with them."""

    def __init__(self, link: Link, buffers: Buffers) -> None:
        self._link = link
        self._buffers = buffers
        self._sent = 0

    def send(self, letter: Letter) -> None:
        """A loss is the link's to tell."""
        self._link.send(Carry(letter.message, letter.description))
        if letter.buffer is None:
            return
        self._sent += 1
        future = self._link.connection.send_data(letter.buffer[: letter.size], self._sent)
        future.when_back(self._back(letter.buffer))

    def _back(self, buffer: memoryview) -> Callable[[TransportError | None], None]:
        def back(error: TransportError | None) -> None:
            self._buffers.give_back(buffer)
            if error is not None:
                self._link.lose(f"{self._link.neighbour} does not take an activation: {error}")

        return back
