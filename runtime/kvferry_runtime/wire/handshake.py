"""The opening of a session: versions, what both sides must share, proof of the shared key. Pure.

D is the `Dialer`, P the `Acceptor`. Each takes the peer's messages and returns what to do. A refusal ends the
connection; nothing is kept of it, so the next attempt starts clean.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from kvferry_contract import fingerprint
from kvferry_runtime.errors import Reason
from kvferry_runtime.wire.effects import reason_of
from kvferry_runtime.wire.messages import (
    MAX_TEXT,
    PROTOCOL_VERSION,
    AnyMessage,
    Hello,
    HelloAck,
    Message,
    Proof,
    Ready,
    Reject,
    encode,
)

TIMEOUT_SECONDS = 5.0
"""For the whole handshake."""

_LABEL_P = b"kvferry-P"
_LABEL_D = b"kvferry-D"


class Refusal(StrEnum):
    """Why a connection was refused. A bounded set: it is a metric label."""

    FRAME = "frame"
    """Bytes that are no frame or message of ours."""
    PROTOCOL = "protocol"
    """A message that may not come now."""
    VERSION = "version"
    KEY = "key"
    FINGERPRINT = "fingerprint"
    FALLBACK = "fallback"
    """No lane of the kind that is required."""
    DATA = "data"
    """The data way could not be opened."""
    TIMEOUT = "timeout"
    """The handshake was not over in time."""
    CAPACITY = "capacity"
    """Too many connections or sessions."""
    NO_ENGINE = "no_engine"
    """No engine is attached here (yet)."""
    DRAINING = "draining"
    CLOSED = "closed"
    """The peer went away during the handshake."""
    BY_PEER = "by_peer"
    """The peer refused."""


@dataclass(frozen=True, slots=True)
class Party:
    """What one side says of itself. chunk_bytes: largest raw chunk that its slots hold."""

    boot_id: bytes
    group: str
    fingerprint: Mapping[str, str]
    codecs: tuple[str, ...]
    chunk_bytes: int
    slots: int
    layerwise: bool


@dataclass(frozen=True, slots=True)
class Reply:
    message: AnyMessage


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the connection. tell: REJECT to send first, if the peer does not know yet. retriable: later it may work."""

    refusal: Refusal
    reason: Reason
    message: str
    tell: Reject | None
    retriable: bool = False


@dataclass(frozen=True, slots=True)
class Agreed:
    """Both sides proved the key. codecs: that both know. layerwise: both allow it."""

    session: int
    group: str
    boot_id: bytes
    codecs: tuple[str, ...]
    layerwise: bool
    data_address: bytes


Outcome = Reply | Refuse | Agreed


def refuse(refusal: Refusal, reason: Reason, message: str, retriable: bool = False) -> Refuse:
    """A refusal that the peer is told."""
    text = message[:MAX_TEXT]
    return Refuse(refusal, reason, text, Reject(reason=reason.value, message=text, retriable=retriable), retriable)


class Dialer:
    """D's side. nonce: 16 random bytes, fresh for each connection.

    data_address: of our end of the data way; called once P has proved the key.
    """

    def __init__(self, party: Party, key: bytes, nonce: bytes, data_address: Callable[[], bytes]) -> None:
        self._party = party
        self._key = key
        self._data_address = data_address
        self._ack: HelloAck | None = None
        self._over = False
        self.hello = Hello(
            version=PROTOCOL_VERSION,
            boot_id=party.boot_id,
            nonce=nonce,
            group=party.group,
            fingerprint=dict(party.fingerprint),
            codecs=list(party.codecs),
            chunk_bytes=party.chunk_bytes,
            slots=party.slots,
            layerwise=party.layerwise,
        )

    def received(self, message: AnyMessage) -> list[Outcome]:
        """Answer P's next message."""
        if self._over:
            return [_unexpected(message)]
        if isinstance(message, Reject):
            self._over = True
            reason = reason_of(message.reason)
            return [Refuse(Refusal.BY_PEER, reason, message.message, None, message.retriable)]
        if isinstance(message, HelloAck) and self._ack is None:
            return self._hello_ack(message)
        self._over = True
        if isinstance(message, Ready) and self._ack is not None:
            return [_agreed(self._party, self._ack, self._ack.session, message.data_address)]
        return [_unexpected(message)]

    def _hello_ack(self, ack: HelloAck) -> list[Outcome]:
        difference = _difference(self._party, ack, chunk_fits=ack.chunk_bytes <= self._party.chunk_bytes)
        if difference is None and not _proves(self._key, _LABEL_P, self.hello, ack, ack.proof):
            difference = _wrong_key()
        if difference is not None:
            self._over = True
            return [difference]
        self._ack = ack
        return [Reply(Proof(proof=_proof(self._key, _LABEL_D, self.hello, ack), data_address=self._data_address()))]


class Acceptor:
    """P's side. session: a number that no open session of this process has.

    data_address: of our end of the data way; called once D has proved the key.
    """

    def __init__(self, party: Party, key: bytes, nonce: bytes, session: int, data_address: Callable[[], bytes]) -> None:
        self._party = party
        self._key = key
        self._nonce = nonce
        self._session = session
        self._data_address = data_address
        self._hello: Hello | None = None
        self._ack: HelloAck | None = None
        self._over = False

    def received(self, message: AnyMessage) -> list[Outcome]:
        """Answer D's next message."""
        if self._over:
            return [_unexpected(message)]
        if isinstance(message, Hello) and self._hello is None:
            return self._receive_hello(message)
        self._over = True
        if isinstance(message, Reject):
            return [Refuse(Refusal.BY_PEER, reason_of(message.reason), message.message, None, message.retriable)]
        if isinstance(message, Proof) and self._hello is not None and self._ack is not None:
            if not _proves(self._key, _LABEL_D, self._hello, self._ack, message.proof):
                return [_wrong_key()]
            agreed = _agreed(self._party, self._hello, self._session, message.data_address)
            return [Reply(Ready(data_address=self._data_address())), agreed]
        return [_unexpected(message)]

    def _receive_hello(self, hello: Hello) -> list[Outcome]:
        difference = _difference(self._party, hello, chunk_fits=self._party.chunk_bytes <= hello.chunk_bytes)
        if difference is not None:
            self._over = True
            return [difference]
        ack = HelloAck(
            version=PROTOCOL_VERSION,
            boot_id=self._party.boot_id,
            nonce=self._nonce,
            group=self._party.group,
            session=self._session,
            fingerprint=dict(self._party.fingerprint),
            codecs=list(self._party.codecs),
            chunk_bytes=self._party.chunk_bytes,
            slots=self._party.slots,
            layerwise=self._party.layerwise,
            proof=bytes(hashlib.sha256().digest_size),
        )
        self._hello = hello
        self._ack = msgspec.structs.replace(ack, proof=_proof(self._key, _LABEL_P, hello, ack))
        return [Reply(self._ack)]


def _difference(ours: Party, theirs: Hello | HelloAck, chunk_fits: bool) -> Refuse | None:
    """The first thing in which the two sides cannot work together, by name."""
    if theirs.version != PROTOCOL_VERSION:
        message = f"protocol version: {PROTOCOL_VERSION} here, {theirs.version} at the peer; use images of one release"
        return refuse(Refusal.VERSION, Reason.HANDSHAKE_FAILED, message)
    if differences := fingerprint.compare(ours.fingerprint, theirs.fingerprint):
        message = "; ".join(map(str, differences))
        return refuse(Refusal.FINGERPRINT, Reason.FINGERPRINT_MISMATCH, message)
    if not chunk_fits:
        message = f"chunk_bytes: {ours.chunk_bytes} here, {theirs.chunk_bytes} at the peer: chunks do not fit its slots"
        return refuse(Refusal.FINGERPRINT, Reason.FINGERPRINT_MISMATCH, message)
    if not set(ours.codecs) & set(theirs.codecs):
        message = f"codecs: {sorted(ours.codecs)} here, {sorted(theirs.codecs)} at the peer; none in common"
        return refuse(Refusal.FINGERPRINT, Reason.FINGERPRINT_MISMATCH, message)
    return None


def _agreed(ours: Party, theirs: Hello | HelloAck, session: int, data_address: bytes) -> Agreed:
    return Agreed(
        session=session,
        group=theirs.group,
        boot_id=theirs.boot_id,
        codecs=tuple(name for name in ours.codecs if name in theirs.codecs),
        layerwise=ours.layerwise and theirs.layerwise,
        data_address=data_address,
    )


def _proof(key: bytes, label: bytes, hello: Hello, ack: HelloAck) -> bytes:
    unproved = msgspec.structs.replace(ack, proof=bytes(hashlib.sha256().digest_size))
    text = label + hashlib.sha256(encode(hello)).digest() + hashlib.sha256(encode(unproved)).digest()
    return hmac.digest(key, text, "sha256")


def _proves(key: bytes, label: bytes, hello: Hello, ack: HelloAck, proof: bytes) -> bool:
    return hmac.compare_digest(_proof(key, label, hello, ack), proof)


def _wrong_key() -> Refuse:
    return refuse(Refusal.KEY, Reason.HANDSHAKE_FAILED, "shared key: the peer does not know ours")


def _unexpected(message: Message) -> Refuse:
    name = type(message).__name__
    return refuse(Refusal.PROTOCOL, Reason.HANDSHAKE_FAILED, f"{name} may not come at this point of the handshake")
