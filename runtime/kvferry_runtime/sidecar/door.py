"""Who may come in: connections of other sidecars, from accepted to a session or refused."""

from __future__ import annotations

import logging
import secrets
from typing import Protocol

from kvferry_contract.config import TransferConfig
from kvferry_runtime.errors import Reason
from kvferry_runtime.sidecar.lane_check import check_lanes
from kvferry_runtime.sidecar.metrics import Metrics
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.transport.doorway import Doorway
from kvferry_runtime.transport.greeting import greet, turn_away
from kvferry_runtime.wire.handshake import TIMEOUT_SECONDS, Acceptor, Agreed, Party, Refusal

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


class Door(Doorway):
    """For the event loop's thread."""

    def __init__(self, house: House, key: bytes, transfer: TransferConfig, metrics: Metrics) -> None:
        super().__init__()
        self._house = house
        self._key = key
        self._transfer = transfer
        self._metrics = metrics
        self._numbers: set[int] = set()
        """Of handshakes that are under way."""

    async def _welcome(self, connection: Connection) -> None:
        number = self._free_number()
        self._numbers.add(number)
        try:
            self._house.admitted(connection, await self._agree(connection, number))
        finally:
            self._numbers.remove(number)

    async def _agree(self, connection: Connection, number: int) -> Agreed:
        party = self._house.party()
        if party is None:
            raise turn_away(connection, Refusal.NO_ENGINE, Reason.NO_CONNECTOR, "no engine is attached here (yet)")
        if self._house.draining:
            raise turn_away(connection, Refusal.DRAINING, Reason.DRAINING, "shutting down")
        if len(self._house.session_numbers()) >= MAX_SESSIONS:
            raise turn_away(connection, Refusal.CAPACITY, Reason.NO_CAPACITY, f"{MAX_SESSIONS} sessions are open")
        acceptor = Acceptor(party, self._key, secrets.token_bytes(16), number, self._once_proved(connection))
        agreed = await greet(connection, acceptor, TIMEOUT_SECONDS)
        problem = check_lanes(connection, self._transfer)
        if problem is not None:
            self._metrics.fallbacks.inc()
            _log.warning(problem, extra={"peer": agreed.group})
        if self._house.draining:
            raise turn_away(connection, Refusal.DRAINING, Reason.DRAINING, "shutting down")
        if self._house.party() != party:
            # What was agreed is the fingerprint of an engine that is no longer there.
            message = "the engine went away during the handshake"
            raise turn_away(connection, Refusal.NO_ENGINE, Reason.ENGINE_LOST, message)
        return agreed

    def _count(self, refusal: Refusal) -> None:
        self._metrics.rejected.labels(refusal.value).inc()

    def _free_number(self) -> int:
        """Random, so that a message of an earlier process at this address is never taken for one of ours."""
        taken = self._house.session_numbers() | self._numbers
        while True:
            number = secrets.randbelow((1 << 32) - 1) + 1
            if number not in taken:
                return number
