"""How fast a session's network takes bytes, from when messages were handed to it and when it was done with them. Pure.

A sample is the bytes of some messages that ended, over the time in which at least one was under way: a sender that
has nothing to send does not make the link look slow. The estimate is the median of the last samples, so that one
stall or burst changes nothing. When the newest samples agree with each other on another rate than the older ones, the
rate has stepped, and the older ones are forgotten: three samples after a step the estimate is the new rate.
"""

from __future__ import annotations

from collections import deque
from statistics import median

SAMPLES = 15
NEWEST = 3
"""How many samples must agree that the rate has stepped."""
STEP = 1.3
"""By which factor they must differ from those before."""
SAMPLE_BYTES = 256 * 1024
SAMPLE_MESSAGES = 8
"""A sample has so many bytes or so many messages, whichever is reached first."""
BUNCH_SECONDS = 5e-3
BUNCH_MESSAGES = 4
"""And lasts so long or has so many messages, but for the first one, as a poor one is better than none: ends are noticed
in bunches, and the kernel takes a message or two at once into its buffers."""
SAMPLE_SECONDS = 100e-6
"""And lasts at least so long in any case."""


class Goodput:
    """Of one session, whatever transfers its messages belong to. Times in seconds of one clock."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._bytes_in_flight = 0
        self._since = 0.0
        self._busy = 0.0
        self._bytes = 0
        self._messages = 0
        self._samples: deque[float] = deque(maxlen=SAMPLES)

    def bytes_per_second(self, now: float) -> float | None:
        """None before the first sample. Less than the samples say when not even that was carried of late."""
        if not self._samples:
            return None
        busy = self._busy + (now - self._since if self._in_flight else 0.0)
        if busy <= SAMPLE_SECONDS:
            return median(self._samples)
        return min(median(self._samples), (self._bytes + self._bytes_in_flight) / busy)

    def started(self, wire_bytes: int, now: float) -> None:
        """A message was handed to the network."""
        if self._in_flight == 0:
            self._since = now
        self._in_flight += 1
        self._bytes_in_flight += wire_bytes

    def ended(self, wire_bytes: int, now: float, carried: bool = True) -> None:
        """The network is done with a message of this size."""
        self._busy += now - self._since
        self._since = now
        self._in_flight -= 1
        self._bytes_in_flight -= wire_bytes
        self._bytes += wire_bytes if carried else 0
        self._messages += 1
        enough = self._bytes >= SAMPLE_BYTES or self._messages >= SAMPLE_MESSAGES
        whole = self._busy >= BUNCH_SECONDS or self._messages >= BUNCH_MESSAGES or not self._samples
        if enough and whole and self._bytes and self._busy >= SAMPLE_SECONDS:
            self._add(self._bytes / self._busy)
            self._busy, self._bytes, self._messages = 0.0, 0, 0

    def _add(self, sample: float) -> None:
        self._samples.append(sample)
        if len(self._samples) < 2 * NEWEST:
            return
        samples = list(self._samples)
        before, newest = median(samples[:-NEWEST]), samples[-NEWEST:]
        if min(newest) > STEP * before or max(newest) * STEP < before:
            self._samples = deque(newest, maxlen=SAMPLES)
