"""What a list and the watch that follows it say together. Pure: bytes in, slices out."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvferry_runtime.errors import KvferryError
from kvferry_runtime.router.slices import Metadata, Slice


class WatchLost(KvferryError):
    """The API server's answer cannot be used (any more): list again."""


class _List(msgspec.Struct):
    kind: Literal["EndpointSliceList"]
    metadata: Metadata
    items: list[Slice] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


_list = msgspec.json.Decoder(_List)
_event = msgspec.json.Decoder(_Event)
_slice = msgspec.json.Decoder(Slice)
_status = msgspec.json.Decoder(_Status)


class SliceView:
    """The slices as they are after every event taken so far. version: of the list, from which to watch.

    Raises:
        WatchLost: `listed` is no list of EndpointSlices.
    """

    def __init__(self, listed: bytes) -> None:
        try:
            found = _list.decode(listed)
        except ValueError as error:
            raise WatchLost(f"the list of EndpointSlices cannot be read: {error}") from error
        self.version = found.metadata.resource_version
        self._known = {each.metadata.name: each for each in found.items or ()}

    @property
    def slices(self) -> list[Slice]:
        return list(self._known.values())

    def take(self, line: bytes) -> bool:
        """Take in one event; whether it can have changed anything.

        Raises:
            WatchLost: it is an error (410: the changes since the list are forgotten), or no event that is known.
        """
        try:
            event = _event.decode(line)
            match event.type:
                case "ADDED" | "MODIFIED":
                    each = _slice.decode(event.object)
                    self._known[each.metadata.name] = each
                case "DELETED":
                    self._known.pop(_slice.decode(event.object).metadata.name, None)
                case "BOOKMARK":
                    return False
                case "ERROR":
                    status = _status.decode(event.object)
                    raise WatchLost(f"the watch ended with {status.code} {status.reason}: {status.message}")
                case _:
                    raise WatchLost(f"the watch sent an event of type {event.type!r}")
        except ValueError as error:
            raise WatchLost(f"the watch sent what is no event: {error}") from error
        return True


def refusal(body: bytes) -> str:
    """What the API server says in an answer that is an error; empty where it says nothing."""
    try:
        return _status.decode(body).message
    except ValueError:
        return ""
