"""Which tokens of which layers are claimed: a set of disjoint intervals for each layer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise

from kvferry_runtime.layout import layers_text


def misplaced(peers: Mapping[str, range], wanted: range) -> str:
    """Why these peers cannot bring all wanted layers, each from one of them; empty if they can.

    peers: the layers of each, empty for one that has not said so yet.
    """
    known = sorted((layers.start, layers.stop, peer) for peer, layers in peers.items() if layers)
    for start, stop, peer in known:
        if start < wanted.start or stop > wanted.stop:
            return f"{peer} has {layers_text(range(start, stop))}, wanted are {layers_text(wanted)}"
    for (_, stop, one), (start, _, other) in pairwise(known):
        if start < stop:
            return f"{one} and {other} both have layer {start}"
    if len(known) < len(peers):
        return ""
    reached = wanted.start
    for start, stop, _ in [*known, (wanted.stop, wanted.stop, "")]:
        if reached < start:
            return f"no peer has {layers_text(range(reached, start))}"
        reached = stop
    return ""


class Coverage:
    """The rectangle `layers` x tokens `start` to `stop` (half-open), filled by rectangles that never overlap."""

    def __init__(self, layers: range, start: int, stop: int) -> None:
        self.layers = layers
        self.start = start
        self.stop = stop
        self._intervals: dict[int, list[tuple[int, int]]] = {layer: [] for layer in layers}
        self._missing = len(layers) * (stop - start)

    def contains(self, layer: int, layer_count: int, start: int, stop: int) -> bool:
        """Whether this rectangle is not empty and lies inside."""
        inside = layer_count > 0 and layer in self.layers and layer + layer_count - 1 in self.layers
        return inside and self.start <= start < stop <= self.stop

    def add(self, layer: int, layer_count: int, start: int, stop: int) -> bool:
        """Claim a rectangle that lies inside. False, and nothing has changed, if any part of it is claimed."""
        wanted = range(layer, layer + layer_count)
        if any(self._overlaps(self._intervals[number], start, stop) for number in wanted):
            return False
        for number in wanted:
            self._insert(self._intervals[number], start, stop)
        self._missing -= layer_count * (stop - start)
        return True

    def shorten(self, stop: int) -> bool:
        """Want tokens up to `stop` only, at least one. False, and nothing has changed, if later ones are claimed."""
        if not self.start < stop <= self.stop:
            return False
        if any(intervals and intervals[-1][1] > stop for intervals in self._intervals.values()):
            return False
        self._missing -= len(self.layers) * (self.stop - stop)
        self.stop = stop
        return True

    @property
    def complete(self) -> bool:
        return self._missing == 0

    def gap(self) -> tuple[int, int, int] | None:
        """The first gap as (layer, start, stop); None when complete."""
        for layer, intervals in self._intervals.items():
            reached = self.start
            for start, stop in intervals:
                if start > reached:
                    return layer, reached, start
                reached = stop
            if reached < self.stop:
                return layer, reached, self.stop
        return None

    @staticmethod
    def _overlaps(intervals: list[tuple[int, int]], start: int, stop: int) -> bool:
        index = bisect_left(intervals, (start, start))
        before = index > 0 and intervals[index - 1][1] > start
        return before or (index < len(intervals) and intervals[index][0] < stop)

    @staticmethod
    def _insert(intervals: list[tuple[int, int]], start: int, stop: int) -> None:
        """Keep the list sorted, and join neighbours so that it stays short."""
        index = bisect_left(intervals, (start, start))
        first = index
        if index > 0 and intervals[index - 1][1] == start:
            first, start = index - 1, intervals[index - 1][0]
        if index < len(intervals) and intervals[index][0] == stop:
            stop, index = intervals[index][1], index + 1
        intervals[first:index] = [(start, stop)]
