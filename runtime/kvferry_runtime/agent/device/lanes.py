"""Queued work on side streams: what it needs to go on, what it holds until its event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

from kvferry_runtime.agent.device.streams import Device, Event, Stream
from kvferry_runtime.agent.device.watch import EventWatch
from kvferry_runtime.agent.in_flight import InFlight
from kvferry_runtime.errors import LayoutError

LANES = 2
"""Streams in turn: one copies over the bus while the other's kernel runs."""


class Lanes:
    """The side streams of one agent, and the watch over their events. Only for the agent's thread."""

    def __init__(self, device: Device) -> None:
        self._streams = cycle([device.stream() for _ in range(LANES)])
        self._watch = EventWatch()

    def next(self) -> Stream:
        """The stream whose turn it is."""
        return next(self._streams)

    def queue(
        self, stream: Stream, work: Callable[[], None], holds: Sequence[InFlight],
        on_passed: Callable[[Exception | None, float], None],
    ) -> Event:  # fmt: skip
        """Submit `work`, count it in `holds` until the device has done it, then call `on_passed`. Returns its event.

        on_passed: told from the watch's thread what failed, now or on the device (part of the work may already be
        queued, and holds what it touches like any other), and how many seconds the device took for the work alone.

        Raises:
            LayoutError: something in `holds` was given back; nothing was queued.
        """
        begun: list[InFlight] = []
        for held in holds:
            if not held.begin():
                for other in begun:
                    other.end()
                raise LayoutError("the engine's memory or the ring was given back before its chunk was copied")
            begun.append(held)
        failures: list[Exception] = []
        start = stream.record()
        try:
            stream.submit(work)
        except Exception as error:
            failures.append(error)

        def passed(reported: Exception | None) -> None:
            for held in holds:
                held.end()
            failure = failures[0] if failures else reported
            on_passed(failure, 0.0 if failure else start.elapsed_time(event) / 1000)

        event = stream.record()
        self._watch.add(event, passed)
        return event

    def close(self, timeout: float) -> bool:
        """Wait for what is queued. Returns whether that took no longer than `timeout` seconds."""
        return self._watch.close(timeout)
