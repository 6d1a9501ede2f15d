"""How the engine's threads tell the agent's thread that a transfer needs a look."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """A set in order of arrival with a descriptor to poll. An item put twice before it is taken counts once, so the
    set is never larger than the number of open transfers, however fast the engine is."""

    def __init__(self) -> None:
        self._items: dict[Item, None] = {}
        self._lock = threading.Lock()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    def fileno(self) -> int:
        """Readable when `take` has something, or after `wake`."""
        return self._event

    def put(self, item: Item) -> None:
        """Never blocks longer than it takes to add an item. After `close` nothing happens."""
        with self._lock:
            known = bool(self._items)
            self._items[item] = None
            if not known and not self._closed:
                os.eventfd_write(self._event, 1)

    def wake(self) -> None:
        """Make the descriptor readable without an item."""
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._event, 1)

    def take(self) -> Item | None:
        """The next item, in order of arrival. None if there is none; the descriptor is then no longer readable."""
        with self._lock:
            if self._items:
                item = next(iter(self._items))
                del self._items[item]
                return item
            if not self._closed:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._event)
            return None

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._event)
