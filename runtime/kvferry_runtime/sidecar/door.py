"""Who may come in: connections of other sidecars, from accepted to a session or refused."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Protocol

from kvferry_contract.config import TransferConfig
from kvferry_runtime.errors import Reason
from kvferry_runtime.sidecar.lane_check import check_lanes
from kvferry_runtime.sidecar.metrics import Metrics
from kvferry_runtime.sidecar.session import CLOSE_SECONDS
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.transport.greeting import HandshakeRefused, greet, tell
from kvferry_runtime.transport.log_limit import LogLimit
from kvferry_runtime.wire.handshake import TIMEOUT_SECONDS, Acceptor, Agreed, Party, Refusal, Refuse, refuse

MAX_UNAUTHENTICATED = 64
"""Connections in the handshake; more are closed at once."""
MAX_SESSIONS = 256

_log = logging.getLogger(__name__)


class House(Protocol):
    """What the door asks its owner."""

    @property
    def draining(self) -> bool: ...

    def party(self) -> Party | None:
        """What this side says of itself; None without an engine."""

    def session_numbers(self) -> set[int]:
        """Of the open sessions in which this side is P."""

    def admitted(self, connection: Connection, agreed: Agreed) -> None:
        """Take over the connection."""


class Door:
    """`on_connection` is what the transport's listener calls."""

    def __init__(self, house: House, key: bytes, transfer: TransferConfig, metrics: Metrics) -> None:
        self._house = house
        self._key = key
        self._transfer = transfer
        self._metrics = metrics
        self._greetings: dict[asyncio.Task[None], int] = {}
        self._closings: set[asyncio.Task[None]] = set()
        self._log_limit = LogLimit(asyncio.get_running_loop().time)

    def on_connection(self, connection: Connection) -> None:
        """Shake hands, or close the connection when too many are doing that."""
        if len(self._greetings) >= MAX_UNAUTHENTICATED:
            message = f"{MAX_UNAUTHENTICATED} connections are in the handshake already"
            self._count(connection, _refused(connection, Refusal.CAPACITY, Reason.NO_CAPACITY, message).refuse)
            # A flood of connections must not find as many descriptors that linger.
            timeout = CLOSE_SECONDS if len(self._closings) < MAX_UNAUTHENTICATED else 0.0
            closing = asyncio.get_running_loop().create_task(connection.close(timeout), name="turn away")
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)
            return
        number = self._free_number()
        task = asyncio.get_running_loop().create_task(self._greet(connection, number), name="door")
        self._greetings[task] = number
        task.add_done_callback(self._greetings.pop)

    async def close(self) -> None:
        """End the handshakes that are under way. Idempotent."""
        for task in self._greetings:
            task.cancel()
        await asyncio.gather(*self._greetings, *self._closings, return_exceptions=True)

    async def _greet(self, connection: Connection, number: int) -> None:
        admitted = False
        try:
            agreed = await self._agree(connection, number)
            self._house.admitted(connection, agreed)
            admitted = True
        except HandshakeRefused as error:
            self._count(connection, error.refuse)
        finally:
            if not admitted:
                await connection.close(CLOSE_SECONDS)

    async def _agree(self, connection: Connection, number: int) -> Agreed:
        party = self._house.party()
        if party is None:
            raise _refused(connection, Refusal.NO_ENGINE, Reason.NO_CONNECTOR, "no engine is attached here (yet)")
        if self._house.draining:
            raise _refused(connection, Refusal.DRAINING, Reason.DRAINING, "shutting down")
        if len(self._house.session_numbers()) >= MAX_SESSIONS:
            raise _refused(connection, Refusal.CAPACITY, Reason.NO_CAPACITY, f"{MAX_SESSIONS} sessions are open")
        acceptor = Acceptor(party, self._key, secrets.token_bytes(16), number, connection.data_address)
        agreed = await greet(connection, acceptor, TIMEOUT_SECONDS)
        problem = check_lanes(connection, self._transfer)
        if problem is not None:
            self._metrics.fallbacks.inc()
            _log.warning(problem, extra={"peer": agreed.group})
        if self._house.draining:
            raise _refused(connection, Refusal.DRAINING, Reason.DRAINING, "shutting down")
        if self._house.party() != party:
            # What was agreed is the fingerprint of an engine that is no longer there.
            raise _refused(
                connection, Refusal.NO_ENGINE, Reason.ENGINE_LOST, "the engine went away during the handshake"
            )
        return agreed

    def _count(self, connection: Connection, refused: Refuse) -> None:
        self._metrics.rejected.labels(refused.refusal.value).inc()
        held_back = self._log_limit.held_back()
        if held_back is not None:
            _log.warning(
                "refused a connection from %s: %s", connection.peer, refused.message, extra={"held_back": held_back}
            )

    def _free_number(self) -> int:
        """Random, so that a message of an earlier process at this address is never taken for one of ours."""
        taken = self._house.session_numbers() | set(self._greetings.values())
        while True:
            number = secrets.randbelow((1 << 32) - 1) + 1
            if number not in taken:
                return number


def _refused(connection: Connection, refusal: Refusal, reason: Reason, message: str) -> HandshakeRefused:
    """A refusal that may pass, and that the peer has been told."""
    refused = refuse(refusal, reason, message, retriable=True)
    tell(connection, refused)
    return HandshakeRefused(refused)
