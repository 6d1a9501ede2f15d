"""A node of the ring whose event loop runs in another thread than the engine."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod

from kvferry_runtime.engine.stages.loop_thread import LoopThread
from kvferry_runtime.engine.stages.messages import AnyMessage
from kvferry_runtime.engine.stages.node import RingNode
from kvferry_runtime.engine.stages.ring import Array, OnLost, OnMessage, StageRing
from kvferry_runtime.engine.stages.settings import RingSettings

TRANSPORT_SECONDS = 2.0
"""That a transport may take to close, whatever happened to its connections."""

_log = logging.getLogger(__name__)


class ThreadedRing(StageRing):
    """node: made in `thread`."""

    def __init__(self, settings: RingSettings, thread: LoopThread, node: RingNode) -> None:
        self.stage = settings.stage
        self.stages = settings.stages
        self._thread = thread
        self._node = node
        self._closing = threading.Lock()

    @property
    def lanes(self) -> tuple[str, ...]:
        """That activations take to the next stage, as transport:device; empty before the ring is complete."""
        return self._node.links.lanes

    def start(self, on_message: OnMessage, on_lost: OnLost) -> None:
        async def start() -> None:
            self._node.start(on_message, on_lost)

        self._thread.run(start())

    def send(self, message: AnyMessage, activation: Array | None = None) -> None:
        self._node.send(message, activation)

    def close(self, timeout: float) -> None:
        # who comes second waits: the thread ends under the first one's feet only
        with self._closing:
            if not self._thread.alive:
                return
            try:
                self._thread.run(self._node.close(timeout), timeout + TRANSPORT_SECONDS)
            except TimeoutError:
                _log.warning("the transport between the stages was not closed in time")
            self._left()

    @abstractmethod
    def _left(self) -> None:
        """The node is closed: do without the thread."""
