"""Who waits for events, so that neither the engine's thread nor the agent's has to: a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from kvferry_runtime.agent.device.streams import Event

OnPassed = Callable[[Exception | None], None]
"""Called with None, or with what the device reported."""

_log = logging.getLogger(__name__)


class EventWatch:
    """Waits for events one after the other, in the order in which they were added, and tells of each.

    It never holds more events than slots are lent. It sleeps without the interpreter's lock, and turns only when
    something was added or passed.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._awaited: deque[tuple[Event, OnPassed]] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kvferry-device-events", daemon=True)
        self._thread.start()

    def add(self, event: Event, on_passed: OnPassed) -> None:
        """Call `on_passed` from this watch's thread once the device has passed `event`."""
        with self._condition:
            self._awaited.append((event, on_passed))
            self._condition.notify()

    def close(self, timeout: float) -> bool:
        """Wait for what was added, then stop. Returns whether that took no longer than `timeout` seconds."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._awaited and not self._closed:
                    self._condition.wait()
                if not self._awaited:
                    return
                event, on_passed = self._awaited.popleft()
            _tell(event, on_passed)


def _tell(event: Event, on_passed: OnPassed) -> None:
    failure: Exception | None = None
    try:
        event.synchronize()
    except Exception as error:
        failure = error
    try:
        on_passed(failure)
    except Exception:
        _log.exception("defect in what follows an event of the device")
