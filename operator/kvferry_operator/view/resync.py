"""Lists beside the watches: they fill the store at the start, and show later whether a watch has gone deaf."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from kvferry_operator.api import names
from kvferry_operator.errors import ClusterError, Forbidden, NotServed, RightsGiven
from kvferry_operator.kube import kinds
from kvferry_operator.kube.client import Cluster
from kvferry_operator.kube.kinds import Kind
from kvferry_operator.metrics import WATCHED, Metrics
from kvferry_operator.schedule import Key
from kvferry_operator.view.packed import Packed, Place
from kvferry_operator.view.store import Store

GRACE_SECONDS = 2.0
"""So much later than a list a watch may tell of the same change."""

logger = logging.getLogger(__name__)


class Resync:
    """Compares the store with a list of each kind, and has a pass of every model, every `seconds` or so."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        metrics: Metrics,
        mark: Callable[[Key], None],
        namespaces: Collection[str],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """namespaces: empty for all."""
        self._cluster = cluster
        self._store = store
        self._metrics = metrics
        self._mark = mark
        self._wanted: tuple[str | None, ...] = tuple(sorted(namespaces)) or (None,)
        self._scopes = self._wanted
        self._seconds = seconds
        self._clock = clock
        self._asked: set[Kind] = set()
        self._news = asyncio.Event()
        self._missing_rounds: dict[Kind, int] = {}
        self._unserved: set[Kind] = set()
        self._closed: dict[str, str] = {}
        self.heard = clock()
        """When a list last came, by the clock."""

    @property
    def deaf(self) -> tuple[Kind, ...]:
        """Kinds whose watch did not tell what two lists in a row showed."""
        return tuple(kind for kind, rounds in self._missing_rounds.items() if rounds > 1)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Those that are served: of the wanted ones all that can be read; empty for the whole cluster."""
        return tuple(scope for scope in self._scopes if scope is not None)

    @property
    def closed(self) -> Mapping[str, str]:
        """Wanted namespaces that may not be read, and why. They are left out, so that none stands in others' way."""
        return self._closed

    async def fill(self) -> None:
        """Read everything for the first time.

        Raises:
            ClusterError: a kind cannot be listed; of several namespaces, in none of them.
        """
        self._closed = {}
        for scope in self._wanted:
            try:
                await self._fill(scope)
            except Forbidden as error:
                if len(self._closed) + 1 == len(self._wanted):
                    raise
                self._closed[str(scope)] = str(error)
        self._scopes = tuple(scope for scope in self._wanted if scope not in self._closed)
        for namespace, why in self._closed.items():
            logger.warning("does without the namespace %s: %s", namespace, why)
        self._mark_all()

    def ask(self, kind: Kind) -> None:
        """Compare one kind soon: its watch began anew, and does not say what was deleted in between."""
        self._asked.add(kind)
        self._news.set()

    async def run(self) -> None:
        """Until it is cancelled.

        Raises:
            RightsGiven: a closed namespace is open.
        """
        while True:
            round_at = self._clock() + self._seconds * random.uniform(0.9, 1.1)  # noqa: S311  spreads load
            while (left := round_at - self._clock()) > 0:
                if await self._is_asked(left):
                    # the listing with which the watch begins may take a moment
                    await asyncio.sleep(GRACE_SECONDS)
                    asked, self._asked = self._asked, set()
                    await self.compare(asked)
            await self.compare(WATCHED)
            self._mark_all()
            await self._check_closed()

    async def _fill(self, scope: str | None) -> None:
        found = [(kind, await self._list_served(kind, scope)) for kind in WATCHED]
        for kind, listed in found:
            for packed in listed:
                self._store.put(packed)
            self._note(kind, 0)

    async def _list_served(self, kind: Kind, scope: str | None) -> list[Packed]:
        try:
            return await self._list(kind, scope)
        except NotServed as error:
            if kind not in kinds.OPTIONAL:
                raise
            # a model that needs one is told when it is refused
            if kind not in self._unserved:
                logger.warning("does without one kind of children: %s", error)
            self._unserved.add(kind)
            return []

    async def _check_closed(self) -> None:
        for namespace in self._closed:
            try:
                for kind in WATCHED:
                    await self._list_served(kind, namespace)
            except ClusterError:
                continue
            raise RightsGiven(f"the namespace {namespace} can be read by now: start anew to serve it")

    async def _is_asked(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True

    async def compare(self, wanted: Collection[Kind]) -> None:
        """Read some kinds and heal the store. A list that fails is left to the next round."""
        for kind in (kind for kind in WATCHED if kind in wanted and kind not in self._unserved):
            try:
                missed = sum([await self._compare_in(kind, scope) for scope in self._scopes])
            except ClusterError as error:
                logger.warning("resync: %s", error)
                continue
            self._note(kind, missed)
            if missed:
                logger.warning("the watch of %s did not tell of %d changes that a list shows", kind.plural, missed)

    async def _compare_in(self, kind: Kind, scope: str | None) -> int:
        """How much the list showed that was not known, nor heard of since."""
        before = self._store.snapshot(kind, scope)
        listed = await self._list(kind, scope)
        if not self._differences(before, listed):
            return 0
        await asyncio.sleep(GRACE_SECONDS)
        differences = self._differences(before, listed)
        for packed, is_there in differences:
            keys = self._store.keys_in(packed.family)
            if is_there:
                self._store.put(packed)
            else:
                self._store.drop(packed)
            for key in {*keys, *self._store.keys_in(packed.family)}:
                self._mark(key)
        return len(differences)

    def _differences(self, before: Mapping[Place, Packed], listed: Collection[Packed]) -> list[tuple[Packed, bool]]:
        news = [(packed, True) for packed in listed if self._store.is_news(packed)]
        return news + [(packed, False) for packed in self._store.vanished(before, listed)]

    async def _list(self, kind: Kind, scope: str | None) -> list[Packed]:
        selector = "" if kind is kinds.MODEL else names.LABEL_MODEL
        return await self._cluster.collect(kind, scope, selector, partial(Packed.of, kind))

    def _note(self, kind: Kind, missed: int) -> None:
        self.heard = self._clock()
        self._metrics.listed(kind, time.time(), missed)
        self._missing_rounds[kind] = self._missing_rounds.get(kind, 0) + 1 if missed else 0

    def _mark_all(self) -> None:
        for key in self._store.models():
            self._mark(key)
