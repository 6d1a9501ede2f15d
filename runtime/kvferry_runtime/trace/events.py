"""What happens to the KV of a transfer on its way, as spans of one clock. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Phase(StrEnum):
    """Stations of a layer or chunk, in their order."""

    COMPUTED = "computed"
    """The forward pass, from the layer before to the moment at which this layer's KV was final."""
    GATHERED = "gathered"
    """Its rows were found in the engine's memory (on a GPU: brought together)."""
    ENCODED = "encoded"
    """The codec wrote the chunk into its slot, digest included."""
    SENT = "sent"
    """From handing the slot to the network until the network was done with it."""
    RECEIVED = "received"
    """The chunk lay in the slot of the other side: an instant, since a receiver cannot tell when it began."""
    DECODED = "decoded"
    """Digest checked and rows written into the engine's memory."""


@dataclass(frozen=True, slots=True)
class Event:
    """One phase of one layer (`sequence` is -1) or chunk.

    transfer: its id. layer, layer_count: global number of the first layer, and how many follow each other.
    token_start, token_stop: half-open range of positions in the prompt. began_ns, ended_ns: CLOCK_MONOTONIC, which all
    processes of one host share, in containers too. size: bytes that were handled, 0 where the phase handles none.
    """

    phase: Phase
    transfer: str
    layer: int
    layer_count: int
    token_start: int
    token_stop: int
    sequence: int
    began_ns: int
    ended_ns: int
    size: int = 0

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.began_ns) / 1e9

    @property
    def layers(self) -> range:
        return range(self.layer, self.layer + self.layer_count)


@dataclass(frozen=True, slots=True)
class Trace:
    """What one process recorded.

    process: its name, e.g. "prefill engine". clock: boot id of its host's kernel; times of processes with the same one
    can be compared. dropped: events that were older than what there was room for.
    """

    process: str
    clock: str
    events: tuple[Event, ...]
    dropped: int

    def only(self, transfer: str) -> Trace:
        """The same with the events of transfers whose id begins so."""
        return replace(self, events=tuple(event for event in self.events if event.transfer.startswith(transfer)))
