"""What watches tell goes into the store, and the models that it is about into the queue. Nothing else happens here."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from kvferry_operator.kube import kinds
from kvferry_operator.kube.kinds import Kind
from kvferry_operator.queue import Queue
from kvferry_operator.view.packed import Packed
from kvferry_operator.view.resync import Resync
from kvferry_operator.view.store import Store


class Heard(Enum):
    """How one hears of an object."""

    LISTED = auto()
    """By the list with which a watch begins."""
    CHANGED = auto()
    DELETED = auto()


class Listener:
    def __init__(self, store: Store, queue: Queue, resync: Resync) -> None:
        self._store = store
        self._queue = queue
        self._resync = resync

    def hear(self, kind: Kind, heard: Heard, manifest: Mapping[str, Any]) -> None:
        """A version of an object that is not news marks nothing: most are the echo of our own writes."""
        if heard is Heard.CHANGED and self._store.has(kind, manifest):
            return
        packed = Packed.of(kind, manifest)
        keys = {*self._store.keys_in(packed.family)}
        urgent = kind is kinds.MODEL and packed.generation != self._store.generation(packed.place[1:])
        is_news = self._store.drop(packed) if heard is Heard.DELETED else self._store.put(packed)
        if heard is Heard.LISTED:
            self._resync.ask(kind)
        if is_news:
            for key in keys | {*self._store.keys_in(packed.family)}:
                self._queue.mark(key, urgent=urgent)
