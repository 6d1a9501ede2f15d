"""What the cluster holds of our models, as last heard: a pass reads this and nothing else. No I/O.

Versions of objects come from watches, from lists and from the answers to our own writes, in any order. An older one
never replaces a newer one, and an object that is gone does not come back by a late answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvferry_operator.api import names
from kvferry_operator.kube import kinds
from kvferry_operator.kube.kinds import Kind
from kvferry_operator.schedule import Key
from kvferry_operator.view.packed import Family, Packed, Place

_REMEMBERED_DELETIONS = 4096
_ORDER = {kind: index for index, kind in enumerate(kinds.CHILDREN)}


class Store:
    """Models, and everything that carries a model's label."""

    def __init__(self) -> None:
        self._objects: dict[Place, Packed] = {}
        self._families: dict[Family, set[Place]] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()
        """By uid, the last version in which an object was there."""

    def put(self, packed: Packed) -> bool:
        """Take in a version of an object; whether it is news."""
        if not self.is_news(packed):
            return False
        if packed.family is None:
            # its label was taken off: it is none of ours any more
            return self.drop(packed)
        self._forget(packed.place)
        self._objects[packed.place] = packed
        self._families.setdefault(packed.family, set()).add(packed.place)
        return True

    def drop(self, packed: Packed) -> bool:
        """An object is gone, or lost its label, in this version; whether that is news.

        Another object of that name stays, and so does a later version of this one: it has come back.
        """
        self._gone[packed.uid] = packed.version
        while len(self._gone) > _REMEMBERED_DELETIONS:
            self._gone.popitem(last=False)
        known = self._objects.get(packed.place)
        if known is None or known.uid != packed.uid or known.version > packed.version:
            return False
        self._forget(packed.place)
        return True

    def has(self, kind: Kind, manifest: Mapping[str, Any]) -> bool:
        """Whether this very version of an object is known already. Costs little, unlike packing it."""
        metadata = manifest["metadata"]
        known = self._objects.get((kind, str(metadata.get("namespace", "")), str(metadata["name"])))
        return known is not None and known.is_version_of(metadata)

    def is_news(self, packed: Packed) -> bool:
        """Whether a version is later than what is known."""
        if not packed.version:
            return True
        if packed.version <= self._gone.get(packed.uid, 0):
            return False
        known = self._objects.get(packed.place)
        if known is None:
            return packed.family is not None
        return known.version < packed.version or (known.version == packed.version and known.uid != packed.uid)

    def model(self, key: Key) -> dict[str, Any] | None:
        """The object as the API server gave it."""
        packed = self._objects.get((kinds.MODEL, *key))
        return packed.unpack() if packed else None

    def generation(self, key: Key) -> int:
        """Of the model; 0 when there is none."""
        packed = self._objects.get((kinds.MODEL, *key))
        return packed.generation if packed else 0

    def children(self, key: Key) -> tuple[dict[str, Any], ...]:
        """Objects that carry the model's label, whoever owns them, in the order in which children are applied."""
        places = (place for place in self._relatives(key) if place[0] in _ORDER)
        return self._unpack(sorted(places, key=lambda place: (_ORDER[place[0]], place[2])))

    def pods(self, key: Key) -> tuple[dict[str, Any], ...]:
        """Pods that carry the model's label, by name."""
        places = (place for place in self._relatives(key) if place[0] is kinds.POD)
        return self._unpack(sorted(places, key=lambda place: place[2]))

    def models(self) -> Iterator[Key]:
        """Of all models."""
        return (place[1:] for place in tuple(self._objects) if place[0] is kinds.MODEL)

    def keys_in(self, family: Family | None) -> tuple[Key, ...]:
        """Of the models that objects of a family are about, as far as they are known."""
        places = self._families.get(family, ()) if family else ()
        return tuple(place[1:] for place in places if place[0] is kinds.MODEL)

    def snapshot(self, kind: Kind, namespace: str | None) -> dict[Place, Packed]:
        """What is known of a kind, in one namespace or all; to be taken before a list is read."""
        known = self._objects.items()
        return {place: packed for place, packed in known if place[0] is kind and namespace in (None, place[1])}

    def vanished(self, before: Mapping[Place, Packed], listed: Iterable[Packed]) -> list[Packed]:
        """What a list shows as gone: it was known `before`, was not heard of since, and is not listed."""
        found = {packed.place for packed in listed}
        return [packed for place, packed in before.items() if place not in found and self._objects.get(place) is packed]

    def _relatives(self, key: Key) -> Iterable[Place]:
        namespace, name = key
        return self._families.get((namespace, names.base(name)), ())

    def _unpack(self, places: Iterable[Place]) -> tuple[dict[str, Any], ...]:
        return tuple(self._objects[place].unpack() for place in places)

    def _forget(self, place: Place) -> None:
        packed = self._objects.pop(place, None)
        if packed is None or packed.family is None:
            return
        members = self._families[packed.family]
        members.discard(place)
        if not members:
            del self._families[packed.family]
