"""What the machines of a transfer ask for: they return these, the sidecar carries them out in order.

A peer is named by an opaque text that the caller chose.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvferry_runtime.errors import Reason
from kvferry_runtime.wire.messages import Ack, AnyMessage


class Asked(msgspec.Struct, frozen=True):
    """Base of all effects."""


class Connect(Asked, frozen=True):
    """Get a session to this peer; answered by `connected` or `peer_lost`."""

    peer: str


class Tell(Asked, frozen=True):
    """Send this control message to this peer."""

    peer: str
    message: AnyMessage


class AskFill(Asked, frozen=True):
    """Ask the agent to write this chunk into this slot."""

    slot: int
    sequence: int
    generation: int


class Transmit(Asked, frozen=True):
    """Send the message in this slot, to the receive with this credit number; answered by `completed`.

    resent: it went out before.
    """

    peer: str
    slot: int
    number: int
    wire_bytes: int
    resent: bool


class Release(Asked, frozen=True):
    """This transfer no longer needs the slot."""

    slot: int


class Deliver(Asked, frozen=True):
    """Give the chunk that arrived to the agent; answered by `consumed`."""


class DropReason(StrEnum):
    UNKNOWN_TRANSFER = "unknown_transfer"
    STALE_GENERATION = "stale_generation"
    DUPLICATE = "duplicate"
    OUT_OF_RANGE = "out_of_range"
    BAD_HEADER = "bad_header"


class Drop(Asked, frozen=True):
    """Do not use the chunk that arrived; count it."""

    reason: DropReason


class Acknowledge(Asked, frozen=True):
    """Tell the peer with the next CREDIT that this chunk is in place."""

    peer: str
    ack: Ack


class Finished(Asked, frozen=True):
    """The one report of this transfer. reason: None when it was committed."""

    reason: Reason | None
    message: str


Effect = Connect | Tell | AskFill | Transmit | Release | Deliver | Drop | Acknowledge | Finished


def reason_of(text: str) -> Reason:
    """The reason that a peer named; INTERNAL for one that this side does not know."""
    try:
        return Reason(text)
    except ValueError:
        return Reason.INTERNAL
