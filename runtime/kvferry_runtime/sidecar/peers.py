"""Sessions in which this side is D: dialled when a transfer wants one, kept, closed when idle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable

from kvferry_contract.config import TransferConfig
from kvferry_runtime.errors import Reason, TransferFailed, TransportError
from kvferry_runtime.ring.slots import SlotState
from kvferry_runtime.sidecar.lane_check import check_lanes
from kvferry_runtime.sidecar.metrics import Metrics
from kvferry_runtime.sidecar.receive_session import ReceiveSession
from kvferry_runtime.sidecar.ring_slots import RingSlots
from kvferry_runtime.sidecar.session import CLOSE_SECONDS
from kvferry_runtime.transport.base import Connection, Transport
from kvferry_runtime.transport.greeting import HandshakeRefused, greet
from kvferry_runtime.wire.handshake import TIMEOUT_SECONDS, Agreed, Dialer, Party, Refusal

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 300.0
"""A session without a transfer for this long is closed, so that its slots are free for others."""
MAX_SESSIONS = 256

_log = logging.getLogger(__name__)


class _NoSlot(TransferFailed):
    """There was no slot for a session."""


class Peers:
    """own: makes the session known to its owner, before it starts."""

    def __init__(
        self,
        transport: Transport,
        slots: RingSlots,
        party: Callable[[], Party | None],
        own: Callable[[ReceiveSession], None],
        key: bytes,
        transfer: TransferConfig,
        metrics: Metrics,
    ) -> None:
        self._transport = transport
        self._slots = slots
        self._party = party
        self._own = own
        self._key = key
        self._transfer = transfer
        self._metrics = metrics
        self._sessions: dict[str, ReceiveSession] = {}
        self._dials: dict[str, asyncio.Task[ReceiveSession]] = {}
        self._slotless: set[str] = set()
        """Addresses that are dialled, but have no slots yet."""

    @property
    def sessions(self) -> list[ReceiveSession]:
        return list(self._sessions.values())

    def usable(self, address: str) -> ReceiveSession | None:
        """The session to this `host:port`, if there is one that takes new transfers."""
        session = self._sessions.get(address)
        if session is None or not session.open or session.exhausted or session.draining:
            return None
        return session

    async def session(self, address: str, timeout: float) -> ReceiveSession:
        """The session to this `host:port`, dialled if there is none.

        Raises:
            TransferFailed: there is none within `timeout` seconds, or the peer takes no new transfers.
        """
        session = self.usable(address)
        if session is not None:
            return session
        known = self._sessions.get(address)
        if known is not None and known.open and known.draining:
            raise TransferFailed(Reason.DRAINING, f"{address} is shutting down")
        until = asyncio.get_running_loop().time() + timeout
        dial = self._dials.get(address)
        try:
            if dial is not None:
                # It is patient for as long as the transfer that began it, and this one may have more time.
                with contextlib.suppress(_NoSlot):
                    return await asyncio.wait_for(asyncio.shield(dial), timeout)
            timeout = max(0.0, until - asyncio.get_running_loop().time())
            return await asyncio.wait_for(asyncio.shield(self._begin_dial(address, timeout)), timeout)
        except TimeoutError:
            if address in self._slotless:
                raise self._no_slot(address) from None
            raise TransferFailed(Reason.PEER_UNREACHABLE, f"no session to {address} within {timeout:.1f} s") from None

    def _begin_dial(self, address: str, timeout: float) -> asyncio.Task[ReceiveSession]:
        dial = self._dials.get(address)
        if dial is None:
            dial = asyncio.create_task(self._dial(address, timeout), name=f"dial {address}")
            self._dials[address] = dial
            dial.add_done_callback(lambda _: self._dials.pop(address, None))
            dial.add_done_callback(_retrieve)
        return dial

    def forget(self, session: ReceiveSession) -> None:
        """This session is over."""
        if self._sessions.get(session.address) is session:
            del self._sessions[session.address]

    def unused(self) -> None:
        """A session has no transfer any more: its slots may be what another one waits for."""
        if self._slotless and not self._slots.free:
            self._close_idlest()

    def tick(self, now: float) -> None:
        """Close what nobody uses, or what has run out of numbers."""
        for session in self.sessions:
            idle = not session.used and now - session.idle_since >= IDLE_SECONDS
            if idle or (session.exhausted and not session.used):
                session.leave(Reason.CANCELLED, "idle")

    async def close(self) -> None:
        """End the dials that are under way. Idempotent."""
        for dial in self._dials.values():
            dial.cancel()
        await asyncio.gather(*self._dials.values(), return_exceptions=True)

    async def _dial(self, address: str, timeout: float) -> ReceiveSession:
        posted = await self._window(address, timeout)
        try:
            session = await self._open(address)
        except TransferFailed as error:
            self._metrics.dial_failed.labels(error.reason.value).inc()
            self._free(posted)
            raise
        except BaseException:
            self._free(posted)
            raise
        self._sessions[address] = session
        self._own(session)
        session.begin(posted)
        _log.info("session opened", extra={"peer": address, "session": session.name, "lanes": session.lanes})
        return session

    async def _open(self, address: str) -> ReceiveSession:
        party = self._party()
        if party is None:
            raise TransferFailed(Reason.ENGINE_LOST, "no engine is attached to this sidecar")
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise TransferFailed(Reason.PEER_UNREACHABLE, f"peer {address!r} is not host:port")
        try:
            connection = await self._transport.connect(host.strip("[]"), int(port), CONNECT_SECONDS)
        except TransportError as error:
            raise TransferFailed(Reason.PEER_UNREACHABLE, f"{address}: {error}") from error
        kept = False
        try:
            agreed = await self._agree(connection, party, address)
            if self._party() != party:
                # What was agreed is the fingerprint of an engine that is no longer there.
                raise TransferFailed(Reason.ENGINE_LOST, "this side's engine went away during the handshake")
            session = ReceiveSession(connection, agreed, party.boot_id, self._slots, address)
            kept = True
            return session
        finally:
            if not kept:
                await connection.close(CLOSE_SECONDS)

    async def _agree(self, connection: Connection, party: Party, address: str) -> Agreed:
        dialer = Dialer(party, self._key, secrets.token_bytes(16), connection.data_address)
        try:
            agreed = await greet(connection, dialer, TIMEOUT_SECONDS)
            problem = check_lanes(connection, self._transfer)
        except HandshakeRefused as error:
            who = f"{address} refused" if error.refuse.refusal is Refusal.BY_PEER else address
            raise TransferFailed(error.refuse.reason, f"{who}: {error}") from error
        if problem is not None:
            self._metrics.fallbacks.inc()
            _log.warning(problem, extra={"peer": address})
        return agreed

    async def _window(self, address: str, timeout: float) -> list[int]:
        """Slots for the session's receives, counted as posted: at least one, at most twice the chunks in flight.

        Raises:
            TransferFailed: no slot became free within `timeout` seconds, or there are too many sessions.
        """
        if len(self._sessions) >= MAX_SESSIONS and not self._close_idlest():
            raise TransferFailed(Reason.NO_CAPACITY, f"{MAX_SESSIONS} sessions are open, none of them idle")
        if not self._slots.free:
            self._close_idlest()
        self._slotless.add(address)
        try:
            return await asyncio.wait_for(self._take_window(address), timeout)
        except TimeoutError:
            raise self._no_slot(address) from None
        finally:
            self._slotless.discard(address)

    async def _take_window(self, address: str) -> list[int]:
        """An equal share of what is free for each session that is being opened now, and for one to come: a transfer
        from several stages opens as many at once, and needs all of them."""
        while True:
            await self._slots.wait_free()
            count = max(1, min(2 * self._transfer.inflight_chunks, self._slots.free // (len(self._slotless) + 1)))
            taken = [slot for _ in range(count) if (slot := self._slots.take(SlotState.POSTED)) is not None]
            if taken:  # else another one was quicker
                self._slotless.discard(address)
                return taken

    def _no_slot(self, address: str) -> _NoSlot:
        message = (
            f"no slot of {self._slots.total} became free for a session to {address}: "
            f"{len(self._sessions)} sessions have them; raise transfer.bufferBytes"
        )
        return _NoSlot(Reason.NO_CAPACITY, message)

    def _close_idlest(self) -> bool:
        """Close the session that nobody has used for longest; False if all are used."""
        idle = [session for session in self._sessions.values() if session.open and not session.used]
        if idle:
            min(idle, key=lambda session: session.idle_since).leave(Reason.CANCELLED, "its slots are needed")
        return bool(idle)

    def _free(self, slots: list[int]) -> None:
        for slot in slots:
            self._slots.move(slot, SlotState.FREE)


def _retrieve(dial: asyncio.Task[ReceiveSession]) -> None:
    """A dial whose waiters have all gone leaves no unread exception behind."""
    if not dial.cancelled():
        dial.exception()
