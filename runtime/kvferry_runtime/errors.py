"""Errors of the runtime.

KvferryError
├── SettingsError           configuration, environment or arguments are wrong; the message says what to change
├── ModelUnavailable        a model that should be there could not be fetched or read
├── StageUnreachable        a pod of this pipeline group did not appear in time
├── LayoutError             KV shapes that cannot be moved, or that do not fit what was announced
├── CodecError
│   ├── CodecRefused        this method cannot carry this layout (named before any byte moves)
│   ├── NotEncodable        these values cannot be carried by this method: send the chunk with `none`
│   └── CorruptPayload      the payload does not decode
├── RingError
│   ├── RingUnavailable     no ring or no sidecar (yet): try again
│   └── RingMismatch        ring of another version or geometry
├── WireError
│   ├── FrameError          bytes that are no frame of ours; close the connection
│   └── ProtocolError       a frame that may not come in this state; close the connection
├── TransportError
│   ├── TransportUnavailable  this transport cannot run here (library, device, interface)
│   ├── ConnectFailed       nobody there, refused, timed out
│   └── ConnectionLost      the peer went away; what was in flight is unknown
└── TransferFailed          carries a `Reason`; the one error that an engine sees
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a transfer did not complete. A bounded set: it is a metric label."""

    NO_CONNECTOR = "no_connector"
    """No sidecar or ring in this pod."""
    PEER_UNREACHABLE = "peer_unreachable"
    """Could not connect, or no answer."""
    PEER_LOST = "peer_lost"
    """Connection reset or peer declared dead in mid-transfer."""
    HANDSHAKE_FAILED = "handshake_failed"
    """Wrong key, wrong protocol version, malformed."""
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    """The two sides do not serve the same model in the same way; the message names the field."""
    FELL_BACK = "fell_back"
    """RDMA was required and the endpoint has no RDMA lane."""
    DENIED = "denied"
    """Prefill does not know the transfer, or will not serve it."""
    DRAINING = "draining"
    """The peer is shutting down and takes no new transfers."""
    NO_CAPACITY = "no_capacity"
    """No free slots or blocks within the deadline."""
    DEADLINE = "deadline"
    """The transfer's deadline passed."""
    CORRUPT = "corrupt"
    """Digest mismatch that a second sending did not mend."""
    CANCELLED = "cancelled"
    """The client went away or the engine gave up."""
    ENGINE_LOST = "engine_lost"
    """The engine's process went away."""
    SIDECAR_LOST = "sidecar_lost"
    """The sidecar's process went away."""
    INTERNAL = "internal"
    """A defect; the log has the traceback."""


class KvferryError(Exception):
    """Base of all errors that this package raises on purpose."""


class SettingsError(KvferryError):
    """Configuration, environment or arguments are wrong."""


class ModelUnavailable(KvferryError):
    """A model could not be fetched or read; the settings may be right."""


class StageUnreachable(KvferryError):
    """A pod of this pipeline group has no address, or does not answer."""


class LayoutError(KvferryError):
    """KV shapes that cannot be moved."""


class CodecError(KvferryError):
    """Base of codec errors."""


class CodecRefused(CodecError):
    """This method cannot carry this layout."""


class NotEncodable(CodecError):
    """These values cannot be carried by this method; the chunk must go with `none`."""


class CorruptPayload(CodecError):
    """The payload does not decode."""


class RingError(KvferryError):
    """Base of ring errors."""


class RingUnavailable(RingError):
    """There is no ring or no sidecar yet."""


class RingMismatch(RingError):
    """The ring has another version or geometry."""


class WireError(KvferryError):
    """Base of protocol errors."""


class FrameError(WireError):
    """Bytes that are no frame of ours."""


class ProtocolError(WireError):
    """A frame that may not come in this state."""


class TransportError(KvferryError):
    """Base of transport errors."""


class TransportUnavailable(TransportError):
    """This transport cannot run here."""


class ConnectFailed(TransportError):
    """Nobody there, refused, or timed out."""


class ConnectionLost(TransportError):
    """The peer went away."""


class TransferFailed(KvferryError):
    """A transfer did not complete."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(f"{reason.value}: {message}")
        self.reason = reason
        self.message = message
