"""How long the wire was busy with one transfer, and how much of that lay behind the forward pass. Pure."""

from __future__ import annotations


class WireTime:
    """Union of the times in which at least one chunk is in flight. All times in seconds of one clock."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._since = 0.0
        self._busy = 0.0
        self._intervals: list[tuple[float, float]] = []
        self._compute_finished: float | None = None
        self._hidden = 0.0

    def started(self, now: float) -> None:
        """A chunk was handed to the network."""
        if self._in_flight == 0:
            self._since = now
        self._in_flight += 1

    def ended(self, now: float) -> None:
        """The network is done with a chunk."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._add(self._since, now)

    def computed(self, finished: float) -> None:
        """The forward pass ended at this time."""
        self._compute_finished = finished
        self._hidden = sum(_before(start, stop, finished) for start, stop in self._intervals)
        self._intervals.clear()

    def busy(self, now: float) -> float:
        return self._busy + (now - self._since if self._in_flight else 0.0)

    def hidden(self, now: float) -> float:
        """The part of `busy` before the forward pass ended; all of it while the pass goes on."""
        if self._compute_finished is None:
            return self.busy(now)
        running = _before(self._since, now, self._compute_finished) if self._in_flight else 0.0
        return self._hidden + running

    def _add(self, start: float, stop: float) -> None:
        self._busy += stop - start
        if self._compute_finished is None:
            self._intervals.append((start, stop))
        else:
            self._hidden += _before(start, stop, self._compute_finished)


def _before(start: float, stop: float, limit: float) -> float:
    """How much of an interval lies before `limit`."""
    return max(0.0, min(stop, limit) - start)
