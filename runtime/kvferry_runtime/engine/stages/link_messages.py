"""What the two ends of one link of the ring tell each other: messages of the group, wrapped, and what keeps a link up.

Each is one control payload, as between sidecars.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kvferry_runtime.engine.stages.messages import AnyMessage, Count, LongText
from kvferry_runtime.wire import payload

MAX_DIMENSIONS = 4


class Description(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Of an activation. digest: xxh3-64 of its bytes, little-endian, C order."""

    shape: Annotated[list[Annotated[int, Meta(ge=1, le=2**31)]], Meta(min_length=1, max_length=MAX_DIMENSIONS)]
    dtype: Literal["float32", "float16", "uint16"]
    digest: Annotated[int, Meta(ge=0)]


class LinkMessage(msgspec.Struct, frozen=True, tag_field="t", forbid_unknown_fields=True):
    """Base of what goes over a link."""


class Carry(LinkMessage, frozen=True, tag="CARRY"):
    """A message of the group, to the next stage. Its activation comes on the data way: the n-th one has tag n."""

    message: AnyMessage
    activation: Description | None


class Lap(LinkMessage, frozen=True, tag="LAP"):
    """Goes round while the ring comes about (see `laps`), to the next stage."""

    number: Literal[1, 2]


class Ping(LinkMessage, frozen=True, tag="PING"):
    """Every second, both ways."""

    number: Count


class Ended(LinkMessage, frozen=True, tag="ENDED"):
    """The group is at its end, for this reason; both ways."""

    message: LongText


AnyLinkMessage = Carry | Lap | Ping | Ended

_DECODER: msgspec.msgpack.Decoder[AnyLinkMessage] = msgspec.msgpack.Decoder(AnyLinkMessage)


def encode(message: AnyLinkMessage) -> bytes:
    """One control payload."""
    return payload.pack(message)


def decode(data: bytes) -> AnyLinkMessage:
    """Read what `encode` wrote.

    Raises:
        FrameError: anything else: other bytes, an unknown message or field, a value outside its limits.
    """
    return payload.unpack(data, _DECODER, "message between stages")
