"""The way from the stage before: messages and their activations, which come by two ways, put together in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from kvferry_runtime.engine.stages import activations
from kvferry_runtime.engine.stages.activations import Buffers
from kvferry_runtime.engine.stages.link import Link
from kvferry_runtime.engine.stages.link_messages import Carry
from kvferry_runtime.engine.stages.ring import Activation, OnMessage
from kvferry_runtime.errors import ProtocolError, TransportError

MAX_WAITING = 4096
"""Messages behind one whose activation is not there yet."""
STALL_TICKS = 15
"""Patience with an activation that is on its way, in seconds: the control way may live on where the data way died."""


class Inbound:
    """buffers: all of them belong to this link. Every free one is posted as a receive, so that nothing waits for one.

    deliver: must not raise. All methods are for the event loop's thread.
    """

    def __init__(self, link: Link, buffers: Buffers, deliver: OnMessage) -> None:
        self._link = link
        self._buffers = buffers
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, Carry]] = deque()
        self._arrived: dict[int, memoryview] = {}
        self._posted = 0
        self._announced = 0
        self._delivered = 0
        self._silent = 0
        while (buffer := buffers.take()) is not None:
            self._post(buffer)

    def carry(self, carry: Carry) -> None:
        """A message came; it is delivered once everything before it is, and its activation is there.

        Raises:
            ProtocolError: its activation is larger than agreed on, or too much waits.
        """
        if carry.activation is not None:
            activations.size_of(carry.activation, self._buffers.size)
            self._announced += 1
        if len(self._waiting) >= MAX_WAITING:
            raise ProtocolError(f"{MAX_WAITING} messages wait for an activation already")
        self._waiting.append((self._announced, carry))
        self._drain()

    def tick(self) -> None:
        """To be called every second."""
        self._silent = self._silent + 1 if self._missing else 0
        if self._silent >= STALL_TICKS:
            self._link.lose(
                f"an activation from {self._link.neighbour} did not arrive within {STALL_TICKS} s of its announcement: "
                "the data way is dead"
            )

    @property
    def _missing(self) -> bool:
        """Whether an activation is awaited for which there is a receive."""
        return bool(self._waiting) and self._waiting[0][0] <= self._posted

    def _post(self, buffer: memoryview) -> None:
        self._posted += 1
        self._link.connection.receive_data(buffer, self._posted).when_back(self._back(self._posted, buffer))

    def _back(self, tag: int, buffer: memoryview) -> Callable[[TransportError | None], None]:
        def back(error: TransportError | None) -> None:
            if error is None:
                self._silent = 0
                self._arrived[tag] = buffer
                self._drain()
            else:
                self._buffers.give_back(buffer)
                self._link.lose(f"{self._link.neighbour} is gone: {error}")

        return back

    def _drain(self) -> None:
        while self._waiting:
            tag, carry = self._waiting[0]
            activation: Activation | None = None
            if carry.activation is not None:
                buffer = self._arrived.pop(tag, None)
                if buffer is None:
                    return
                try:
                    array = activations.read(buffer, carry.activation)
                except ProtocolError as error:
                    self._buffers.give_back(buffer)
                    self._waiting.clear()
                    self._link.lose(f"{type(carry.message).__name__} from {self._link.neighbour}: {error}")
                    return
                activation = Activation(array, self._released(buffer))
            self._waiting.popleft()
            self._deliver(carry.message, activation)

    def _released(self, buffer: memoryview) -> Callable[[], None]:
        def release() -> None:
            try:
                self._loop.call_soon_threadsafe(self._post, buffer)
            except RuntimeError:
                self._buffers.give_back(buffer)  # the ring's thread has ended

        return release
