"""Whether a session may go over the lanes that it got."""

from __future__ import annotations

from kvferry_contract.config import OnFallback, TransferConfig
from kvferry_runtime.errors import Reason
from kvferry_runtime.sidecar import lanes
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.transport.greeting import HandshakeRefused, tell
from kvferry_runtime.wire.handshake import Refusal, refuse


def check_lanes(connection: Connection, transfer: TransferConfig) -> str | None:
    """What is wrong with the lanes, if that is tolerated; None if nothing is.

    Raises:
        HandshakeRefused: they are of another kind than required; the peer was told.
    """
    problem = lanes.fallback(transfer.transport, connection.lanes())
    if problem is None or transfer.on_fallback is OnFallback.WARN:
        return problem
    refused = refuse(Refusal.FALLBACK, Reason.FELL_BACK, problem)
    tell(connection, refused)
    raise HandshakeRefused(refused)
