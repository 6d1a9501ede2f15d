"""How much work of others than the agent's thread still touches something, and what to do once none does."""

from __future__ import annotations

import threading
from collections.abc import Callable


class InFlight:
    """Counts work from its queueing to its event. Calls may come from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._when_idle: Callable[[], None] | None = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called: nothing more may begin."""
        return self._when_idle is not None

    @property
    def count(self) -> int:
        """How much is queued and not done."""
        return self._count

    def begin(self) -> bool:
        """Count one more, unless it is closed."""
        with self._lock:
            if self.closed:
                return False
            self._count += 1
            return True

    def end(self) -> None:
        """One less. The last one after `close` runs what `close` was given."""
        with self._lock:
            self._count -= 1
            then = self._when_idle if self._count == 0 else None
        if then is not None:
            then()

    def close(self, when_idle: Callable[[], None]) -> None:
        """Let nothing more begin, and call `when_idle` once: now, or from the thread that ends the last one.

        Only the first call counts.
        """
        with self._lock:
            if self.closed:
                return
            self._when_idle = when_idle
            idle = self._count == 0
        if idle:
            when_idle()
