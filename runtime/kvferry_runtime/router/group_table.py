"""The groups as the router knows them now: discovery's view, requests in flight, and who failed a moment ago."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from kvferry_contract.endpoints import Group
from kvferry_runtime.router.pairing import Load, Route, Wish, choose

ASIDE_SECONDS = 2.0
"""A group that could not be reached gets no new request for this long: readiness takes longer to show it."""


class GroupTable:
    """Mutable state of one router. Used from one event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._groups: tuple[Group, ...] = ()
        self._loads: dict[str, Load] = {}
        self._aside_until: dict[str, float] = {}
        self._turn = 0

    @property
    def groups(self) -> tuple[Group, ...]:
        return self._groups

    def replace(self, groups: tuple[Group, ...]) -> None:
        """Take discovery's new view. Requests in flight at groups that are gone go on and stay counted."""
        self._groups = groups
        known = {group.engine for group in groups}
        self._loads = {key: load for key, load in self._loads.items() if key in known or load.in_flight}
        self._aside_until = {key: until for key, until in self._aside_until.items() if key in known}

    def choose(self, wish: Wish) -> Route:
        return choose(self._groups, self._loads, self.aside(), wish)

    @contextmanager
    def hold(self, groups: Iterable[Group]) -> Iterator[None]:
        """Count one request at each of `groups` until the block ends."""
        engines = [group.engine for group in groups]
        self._turn += 1
        for engine in engines:
            self._loads[engine] = Load(self.in_flight(engine) + 1, self._turn)
        try:
            yield
        finally:
            for engine in engines:
                load = self._loads[engine]
                self._loads[engine] = Load(load.in_flight - 1, load.turn)

    def in_flight(self, engine: str) -> int:
        load = self._loads.get(engine)
        return load.in_flight if load else 0

    def put_aside(self, engine: str) -> None:
        self._aside_until[engine] = self._clock() + ASIDE_SECONDS

    def aside(self) -> set[str]:
        """Engines that failed a moment ago."""
        if not self._aside_until:
            return set()
        now = self._clock()
        self._aside_until = {engine: until for engine, until in self._aside_until.items() if until > now}
        return set(self._aside_until)
