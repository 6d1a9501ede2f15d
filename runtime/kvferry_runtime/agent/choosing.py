"""A chunk that waits until it is known which tokens of its layers are kept, while the agent's thread goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kvferry_runtime.agent.eviction import Eviction
from kvferry_runtime.agent.slot_work import SlotWork
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.wire.data import DataHeader


class Choosing(SlotWork[DataHeader]):
    """write: writes the chunk, once its layers are chosen; called by the agent's thread."""

    def __init__(self, eviction: Eviction, layers: range, write: Callable[[], DataHeader]) -> None:
        """Raises LayoutError: the engine has its memory back."""
        self._eviction = eviction
        self._layers = layers
        self._write = write
        self._lock = threading.Lock()
        self._look: Callable[[], None] | None = None
        self._over = False
        self._failure: Exception | None = None
        self._seconds = 0.0
        if not eviction.in_flight.begin():
            raise LayoutError("the engine's memory was given back before its chunk was copied")
        threading.Thread(target=self._choose, name="kvferry-choose", daemon=True).start()

    def result(self) -> DataHeader | None:
        if not self._over:
            return None
        if self._failure is not None:
            raise self._failure
        if self._eviction.in_flight.closed:
            raise LayoutError("the engine's memory was given back before its chunk was copied")
        begun = time.thread_time()
        header = self._write()
        self._seconds = time.thread_time() - begun
        return header

    @property
    def seconds(self) -> float:
        """Without the choice, which is made once for a layer."""
        return self._seconds

    def when_ready(self, look: Callable[[], None]) -> None:
        with self._lock:
            self._look = look
            over = self._over
        if over:
            look()

    def _choose(self) -> None:
        try:
            self._eviction.choose(self._layers)
        except Exception as error:
            self._failure = error
        with self._lock:
            self._over = True
            look = self._look
        if look is not None:
            look()
        self._eviction.in_flight.end()
