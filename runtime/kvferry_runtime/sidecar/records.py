"""What became of each transfer: served by HTTP, and asked when a peer names a transfer that is over."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

from kvferry_runtime.auto.choice import Choice, Why

KEPT = 1024
"""Transfers that are over and still known."""


class Direction(StrEnum):
    SEND = "send"
    RECEIVE = "receive"


@dataclass(slots=True)
class TransferRecord:
    """One transfer, as GET /v1/transfers/ID shows it.

    first_layer, layer_count: those that are sent or wanted, global numbers. reason: empty unless it failed. peer: all
    peers, joined by commas. digest: hexadecimal, of each peer's SEAL, joined by commas. wire_seconds: the time in which
    a chunk was in flight, hidden_seconds: the part of it before the forward pass ended; only the sender knows both.
    resent: chunks that were sent (asked for) again.
    shortened_to: tokens that were sent, where decode computes the rest sooner; None for all.

    Of the sender alone: why `codec` was chosen, and exposed_seconds: what was predicted then, from the end of the pass
    on. codecs: raw bytes by the method that carried them. max_relative_error: largest on samples.
    """

    id: str
    direction: Direction
    tokens: int
    started_unix: float
    state: str
    first_layer: int = 0
    layer_count: int = 0
    over: bool = False
    reason: str = ""
    message: str = ""
    peer: str = ""
    generation: int = 0
    codec: str = ""
    why: str = ""
    exposed_seconds: float | None = None
    shortened_to: int | None = None
    codecs: dict[str, int] = field(default_factory=dict)
    max_relative_error: float | None = None
    layerwise: bool = False
    chunks: int = 0
    bytes_raw: int = 0
    bytes_wire: int = 0
    digest: str = ""
    wire_seconds: float = 0.0
    hidden_seconds: float = 0.0
    lanes: tuple[str, ...] = ()
    resent: int = 0

    def chose(self, choice: Choice) -> None:
        """It is bound to a peer, and begins like this."""
        self.codec, self.why, self.exposed_seconds = choice.method, choice.why.value, choice.exposed_seconds
        self.codecs.clear()

    def carried(self, method: str, raw_bytes: int) -> None:
        """One more chunk is on its way. Where methods were chosen, the record names the one that carried most."""
        self.codecs[method] = self.codecs.get(method, 0) + raw_bytes
        if self.why not in ("", Why.FIXED.value):
            self.codec = max(self.codecs, key=lambda name: self.codecs[name])

    def checked(self, relative_error: float) -> None:
        """A chunk was decoded at the sender."""
        self.max_relative_error = max(self.max_relative_error or 0.0, relative_error)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; with hidden_share (of wire_seconds, 0 to 1) and goodput_bytes_per_s (raw bytes).

        At the receiver everything about time on the wire is None: it could only tell when things arrived.
        """
        busy = self.wire_seconds
        timed: dict[str, float | None] = {
            "wire_seconds": busy,
            "hidden_seconds": self.hidden_seconds,
            "hidden_share": self.hidden_seconds / busy if busy > 0 else 0.0,
            "goodput_bytes_per_s": self.bytes_raw / busy if busy > 0 else 0.0,
        }
        if self.direction is Direction.RECEIVE:
            timed = dict.fromkeys(timed)
        return asdict(self) | {"lanes": list(self.lanes)} | timed


class Records:
    """All open transfers and the last `KEPT` that are over, newest last."""

    def __init__(self) -> None:
        self._records: OrderedDict[tuple[str, Direction], TransferRecord] = OrderedDict()

    def add(self, record: TransferRecord) -> None:
        """A transfer begins. One that is open under the same id and direction must not exist."""
        self._records[record.id, record.direction] = record
        self._records.move_to_end((record.id, record.direction))
        excess = len(self._records) - KEPT
        if excess > 0:
            over = (key for key, item in self._records.items() if item.over)
            for key in list(islice(over, excess)):
                del self._records[key]

    def get(self, transfer_id: str, direction: Direction) -> TransferRecord | None:
        return self._records.get((transfer_id, direction))

    def find(self, transfer_id: str) -> list[TransferRecord]:
        """Of both directions: a pod that talks to itself has two."""
        return [record for direction in Direction if (record := self.get(transfer_id, direction)) is not None]

    def newest(self, limit: int) -> list[TransferRecord]:
        """The last `limit`, newest first."""
        return list(reversed(self._records.values()))[:limit]
