"""Where the data path leaves its events: bounded, and nothing at all where no timeline is asked for."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

from kvferry_runtime.errors import SettingsError
from kvferry_runtime.trace import chrome
from kvferry_runtime.trace.events import Event, Trace

CAPACITY = 1 << 17
"""Events that are kept, the newest: 40 MB, and some 600 transfers of 32 layers."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Names the clock: CLOCK_MONOTONIC begins anew with each boot of a host, and no two hosts share it."""


class Recorder:
    """Keeps the last `capacity` events; any thread may add. Who has no timeline to write has no recorder (`None`)."""

    def __init__(self, process: str, capacity: int = CAPACITY) -> None:
        """process: what the timeline calls this process."""
        self._process = process
        self._events: deque[Event] = deque(maxlen=capacity)
        self._lock = threading.Lock()
        self._total = 0

    def add(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
            self._total += 1

    def trace(self) -> Trace:
        """What is kept now."""
        with self._lock:
            events, total = tuple(self._events), self._total
        return Trace(self._process, _BOOT_ID.read_text().strip(), events, total - len(events))

    def write(self, path: Path) -> None:
        """As a Chrome trace (see `chrome`); replaces the file.

        Raises:
            SettingsError: the file cannot be written.
        """
        try:
            path.write_text(chrome.dump([self.trace()]), encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"cannot write the trace {path}: {error.strerror}") from error


def for_process(path: Path | None, process: str) -> Recorder | None:
    """A recorder, if a file was named; its folder is made, so that a typing error shows at start and not at the end.

    Raises:
        SettingsError: nothing can be written there.
    """
    if path is None:
        return None
    recorder = Recorder(process)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"cannot make the folder of the trace {path}: {error.strerror}") from error
    recorder.write(path)
    return recorder
