"""RESERVEs that came before their offer, and transfers that a peer gave up before they were offered. Bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from kvferry_runtime.errors import Reason
from kvferry_runtime.sidecar.send_session import SendSession
from kvferry_runtime.wire.effects import reason_of
from kvferry_runtime.wire.messages import Abort, Deny, Reserve

MAX_WAITING = 1024
MAX_GIVEN_UP = 1024

_FOR_GOOD = frozenset({Reason.CANCELLED, Reason.DEADLINE, Reason.ENGINE_LOST})
"""After these the peer does not come again, so an offer that comes later has nobody to wait for."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """expires: in seconds of the owner's clock."""

    session: SendSession
    message: Reserve
    expires: float

    def deny(self, reason: Reason, text: str) -> None:
        """Tell the peer that nothing will come."""
        self.session.tell(
            Deny(
                transfer_id=self.message.transfer_id,
                generation=self.message.generation,
                reason=reason.value,
                message=text[:1024],
            )
        )


class Reservations:
    """By transfer id; a newer one for the same transfer replaces the older one."""

    def __init__(self) -> None:
        self._waiting: dict[str, Reservation] = {}
        self._given_up: OrderedDict[str, Abort] = OrderedDict()

    def wait(self, reservation: Reservation) -> None:
        """Keep it until its offer comes, or deny it when too many wait."""
        if len(self._waiting) >= MAX_WAITING:
            reservation.deny(Reason.NO_CAPACITY, f"{MAX_WAITING} transfers wait for their offer")
            return
        self._waiting[reservation.message.transfer_id] = reservation

    def take(self, transfer_id: str) -> Reservation | None:
        """The offer is here."""
        return self._waiting.pop(transfer_id, None)

    def take_given_up(self, transfer_id: str) -> Abort | None:
        """How a peer gave this transfer up before it was offered."""
        return self._given_up.pop(transfer_id, None)

    def abort(self, session: SendSession, message: Abort) -> None:
        """The peer gave up."""
        waiting = self._waiting.get(message.transfer_id)
        if waiting is None or waiting.session is not session:
            return
        del self._waiting[message.transfer_id]
        if reason_of(message.reason) in _FOR_GOOD:
            self._given_up[message.transfer_id] = message
            if len(self._given_up) > MAX_GIVEN_UP:
                self._given_up.popitem(last=False)

    def forget(self, session: SendSession) -> None:
        """The session is over."""
        self._waiting = {key: item for key, item in self._waiting.items() if item.session is not session}

    def expire(self, now: float) -> None:
        """Deny what has waited for too long."""
        for transfer_id in [key for key, item in self._waiting.items() if now >= item.expires]:
            self._waiting.pop(transfer_id).deny(Reason.DEADLINE, "it was not offered within the deadline")

    def deny_all(self, reason: Reason, text: str) -> None:
        for reservation in self._waiting.values():
            reservation.deny(reason, text)
        self._waiting.clear()
