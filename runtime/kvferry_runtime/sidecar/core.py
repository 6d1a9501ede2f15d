"""The sidecar as a library, without a process of its own: start it in an event loop, close it, look at it."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from kvferry_contract import fingerprint
from kvferry_contract.config import OverlapMode
from kvferry_runtime.errors import Reason, SettingsError, TransportUnavailable
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.messages import (
    Attach,
    Cancel,
    ChunksReady,
    Consumed,
    Fetch,
    Filled,
    FromAgent,
    Offer,
    SealOffer,
)
from kvferry_runtime.ring.slots import SlotState
from kvferry_runtime.sidecar import resources
from kvferry_runtime.sidecar.chunk_events import ChunkEvents
from kvferry_runtime.sidecar.door import Door
from kvferry_runtime.sidecar.hub import AgentHub
from kvferry_runtime.sidecar.metrics import Metrics
from kvferry_runtime.sidecar.peers import Peers
from kvferry_runtime.sidecar.receive_session import ReceiveSession
from kvferry_runtime.sidecar.receives import Receives
from kvferry_runtime.sidecar.records import Records
from kvferry_runtime.sidecar.ring_slots import RingSlots
from kvferry_runtime.sidecar.send_session import SendSession
from kvferry_runtime.sidecar.sends import Sends
from kvferry_runtime.sidecar.session import Session
from kvferry_runtime.sidecar.settings import SidecarSettings
from kvferry_runtime.trace.recorder import Recorder
from kvferry_runtime.transport.base import Connection, Listener, Transport
from kvferry_runtime.wire.handshake import Agreed, Party
from kvferry_runtime.wire.messages import GoAway

_log = logging.getLogger(__name__)


class SidecarCore:
    """Call `start` once, then `close` in every case. `drain` before `close` lets open transfers end."""

    def __init__(
        self,
        settings: SidecarSettings,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        recorder: Recorder | None = None,
    ) -> None:
        """recorder: where a timeline is asked for."""
        self.settings = settings
        self.metrics = Metrics()
        self.records = Records()
        self._transport = transport
        self._clock = clock
        self._recorder = recorder
        self._resources = resources.found()
        self._boot_id = secrets.token_bytes(16)
        self._draining = False
        self._fingerprint: dict[str, str] = {}
        self._ring: RingMemory | None = None
        self._listener: Listener | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._known: set[Session] = set()
        """Sessions, until they are closed for good."""
        self._over = asyncio.Event()

    async def start(self) -> None:
        """Make the ring, listen for the agent and for peers.

        Raises:
            SettingsError: the ring cannot be made, or an address is not free; says what to change.
        """
        settings = self.settings
        self._ring = RingMemory.create(
            settings.ring_directory, settings.slots, settings.transfer.chunk_bytes, self._boot_id.hex()
        )
        self._slots = RingSlots(self._ring)
        self._hub = AgentHub(settings.role, self._ring, self._boot_id.hex(), self, self._clock)
        shared = (self._slots, self._hub, self.records, self.metrics, settings.retries, self._clock)
        self._sends = Sends(*shared, settings.transfer)
        self._receives = Receives(*shared)
        if self._recorder is not None:
            self._sends.events = self._receives.events = ChunkEvents(self._recorder, self._slots)
        self._slots.on_free = self._sends.pump_soon
        self._sends.on_over = self._receives.on_over = self._over.set
        self._peers = Peers(
            self._transport,
            self._slots,
            self.party,
            self._own,
            settings.key,
            settings.transfer,
            self.metrics,
        )
        self._receives.peers = self._peers
        self._door = Door(self, settings.key, settings.transfer, self.metrics)
        self._describe()
        try:
            await self._hub.start(settings.ring_directory)
            self._listener = await self._transport.listen(settings.host, settings.peer_port, self._door.on_connection)
        except TransportUnavailable as error:
            await self.close()
            raise SettingsError(f"peer port: {error}") from error
        except BaseException:
            await self.close()
            raise
        self._ticking = asyncio.create_task(self._tick(), name="tick")
        _log.info("sidecar ready", extra={"peer_address": self.address, "slots": settings.slots})

    @property
    def address(self) -> tuple[str, int]:
        """Where peers are really listened for."""
        assert self._listener is not None
        return self._listener.address

    @property
    def attached(self) -> bool:
        return self._hub.attach is not None

    @property
    def ready(self) -> bool:
        """An engine is attached, and new transfers are taken."""
        return self.attached and not self._draining

    @property
    def open_transfers(self) -> int:
        return self._sends.open + self._receives.open

    def state(self) -> dict[str, Any]:
        """For GET /v1/state. totals: of what was sent and committed since the start; bytes, seconds."""
        counts = self._slots.counts()
        sessions = self._sessions()
        return {
            "boot_id": self._boot_id.hex(),
            "group": self.settings.group,
            "attached": self.attached,
            "engine_age_ms": self._hub.engine_age_ms(),
            "draining": self._draining,
            "ring": {"slots": self._slots.total} | {state.value: count for state, count in counts.items()},
            "sessions": [
                {
                    "peer": session.agreed.group,
                    "role": session.direction.value,
                    "lanes": list(session.lanes),
                    "credits": session.credits,
                    "ping_age_ms": session.ping_age_ms,
                }
                for session in sessions
            ],
            "lanes": sorted({lane for session in sessions for lane in session.lanes}),
            "fingerprint": fingerprint.digest(self._fingerprint),
            "memlock_bytes": self._resources.memlock_bytes,
            "devices": list(self._resources.devices),
            "totals": self.metrics.sent(),
            "transfers": {"open_send": self._sends.open, "open_receive": self._receives.open},
        }

    async def drain(self) -> None:
        """Take no new transfers; return when the open ones have ended, at the latest after `drain_seconds`."""
        if self._draining:
            return
        self._draining = True
        _log.info("draining", extra={"open_transfers": self.open_transfers})
        self._sends.drain()
        self._receives.drain()
        for session in self._sessions():
            session.tell(GoAway(deadline_ms=int(self.settings.drain_seconds * 1000)))
        try:
            async with asyncio.timeout(self.settings.drain_seconds):
                while self.open_transfers:
                    self._over.clear()
                    await self._over.wait()
        except TimeoutError:
            _log.warning("ending transfers that outlast the drain", extra={"open_transfers": self.open_transfers})
        text = f"this sidecar shut down: not over within {self.settings.drain_seconds:g} s"
        self._sends.abandon(Reason.DRAINING, text)
        self._receives.abandon(Reason.DRAINING, text)

    async def close(self) -> None:
        """Free everything. Idempotent; bounded to a few seconds."""
        if self._ring is None:
            return
        self._draining = True
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        if self._listener is not None:
            await self._listener.close()
        await self._door.close()
        await self._receives.close()
        await self._peers.close()
        for session in self._known:
            session.leave(Reason.DRAINING, "this sidecar shuts down")
        await asyncio.gather(*(session.closed() for session in self._known))
        await self._transport.close()
        await self._hub.close()
        self._ring.unlink()
        self._ring.close()
        self._ring = None

    # ---- what the hub tells ----

    def agent_attached(self, attach: Attach) -> None:
        if self._fingerprint != attach.fingerprint:
            for session in self._sessions():
                session.leave(Reason.FINGERPRINT_MISMATCH, "another engine is attached, with another fingerprint")
        self._fingerprint = attach.fingerprint

    def agent_said(self, message: FromAgent) -> None:
        match message:
            case Offer():
                self._sends.offer(message)
            case ChunksReady():
                self._sends.ready(message)
            case Filled():
                self._sends.filled(message)
            case SealOffer():
                self._sends.seal(message)
            case Fetch():
                self._receives.fetch(message)
            case Consumed():
                self._receives.consumed(message)
            case Cancel():
                self._sends.cancel(message)
                self._receives.cancel(message)

    def agent_paused(self) -> None:
        self._sends.settle()
        self._receives.settle()

    def agent_lost(self, message: str) -> None:
        self._sends.agent_lost(message)
        self._receives.agent_lost(message)

    # ---- what the door asks ----

    @property
    def draining(self) -> bool:
        return self._draining

    def party(self) -> Party | None:
        attach = self._hub.attach
        if attach is None:
            return None
        return Party(
            boot_id=self._boot_id,
            group=self.settings.group,
            fingerprint=attach.fingerprint,
            codecs=tuple(attach.codecs),
            chunk_bytes=self._slots.chunk_bytes,
            slots=self._slots.total,
            layerwise=self.settings.transfer.overlap is not OverlapMode.REQUEST,
        )

    def session_numbers(self) -> set[int]:
        return {session.agreed.session for session in self._sends.sessions}

    def admitted(self, connection: Connection, agreed: Agreed) -> None:
        session = SendSession(connection, agreed, self._boot_id, self._slots)
        self._known.add(session)
        self._sends.admit(session)

    # ---- inside ----

    def _own(self, session: ReceiveSession) -> None:
        self._known.add(session)
        self._receives.own(session)

    def _sessions(self) -> list[SendSession | ReceiveSession]:
        return [*self._sends.sessions, *self._peers.sessions]

    async def _tick(self) -> None:
        """The one clock of all states: PINGs, deadlines, idle sessions."""
        while True:
            await asyncio.sleep(self.settings.tick_seconds)
            try:
                self._look_at_clock()
            except Exception:
                _log.exception("defect in the sidecar")

    def _look_at_clock(self) -> None:
        now, age = self._clock(), self._hub.engine_age_ms()
        for session in self._sessions():
            session.tick(age)
        self._known = {session for session in self._known if not session.finished}
        self._sends.tick(now)
        self._receives.tick(now)
        self._peers.tick(asyncio.get_running_loop().time())

    def _count_slots(self, state: SlotState) -> float:
        return self._slots.counts()[state]

    def _describe(self) -> None:
        """Gauges that are read when they are asked for."""
        gauge, gauges = self.metrics.gauge, self.metrics.gauges
        gauge("agent_attached", "1 if an engine is attached", lambda: float(self.attached))
        gauge(
            "max_relative_error",
            "Largest error of a lossy method that a check at the sender found; NaN before the first one",
            lambda: math.nan if self.metrics.max_relative_error is None else self.metrics.max_relative_error,
        )
        gauge("draining", "1 while shutting down", lambda: float(self._draining))
        gauge(
            "engine_age_seconds",
            "Since the engine's loop was last seen turning; negative without an engine",
            lambda: self._hub.engine_age_ms() / 1000,
        )
        gauges(
            "slots",
            "Slots of the ring by state",
            "state",
            {state.value: partial(self._count_slots, state) for state in SlotState},
        )
        gauges(
            "sessions",
            "Open sessions",
            "role",
            {
                "send": lambda: float(len(self._sends.sessions)),
                "receive": lambda: float(len(self._peers.sessions)),
            },
        )
        gauges(
            "open_transfers",
            "Transfers that are not over",
            "direction",
            {"send": lambda: float(self._sends.open), "receive": lambda: float(self._receives.open)},
        )
