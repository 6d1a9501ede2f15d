"""A stage's two links: opened, opened anew until the whole ring is there, then held until the first loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from kvferry_runtime.engine import stage_hosts
from kvferry_runtime.engine.stages.dialling import dial
from kvferry_runtime.engine.stages.door import Door
from kvferry_runtime.engine.stages.inbound import Inbound
from kvferry_runtime.engine.stages.laps import Laps
from kvferry_runtime.engine.stages.link import Link
from kvferry_runtime.engine.stages.link_messages import Carry, Lap
from kvferry_runtime.engine.stages.party import party
from kvferry_runtime.engine.stages.settings import RingSettings
from kvferry_runtime.errors import ProtocolError, StageUnreachable, TransportError
from kvferry_runtime.transport.base import Connection, Listener, Transport
from kvferry_runtime.transport.doorway import CLOSE_SECONDS
from kvferry_runtime.wire.handshake import Agreed

RETRY_SECONDS = 0.5

_log = logging.getLogger(__name__)


class Links:
    """receive: makes what takes the messages of a link from the stage before. on_lost: called once, and only after the
    ring was complete. All methods are for the event loop's thread.
    """

    def __init__(
        self,
        settings: RingSettings,
        marks: Mapping[str, str],
        max_activation_bytes: int,
        boot_id: bytes,
        transport: Transport,
        lookup: stage_hosts.Lookup,
        receive: Callable[[Link], Inbound],
        on_lost: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._lookup = lookup
        self._receive = receive
        self._on_lost = on_lost
        self._dialler = party(settings, marks, max_activation_bytes, boot_id, dialling=True)
        acceptor = party(settings, marks, max_activation_bytes, boot_id, dialling=False)
        self.door = Door(acceptor, settings.key, lambda: self._incoming is not None, self._admitted)
        self._laps = Laps(first=settings.stage == 0)
        self._incoming: Link | None = None
        self._outgoing: Link | None = None
        self._inbound: Inbound | None = None
        self._listener: Listener | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()
        self._outgoing_lost = asyncio.Event()
        self._problem = "it was not tried yet"
        self._given_up = False

    @property
    def outgoing(self) -> Link | None:
        """To the next stage, once the ring is complete."""
        return self._outgoing if self._laps.complete else None

    @property
    def lanes(self) -> tuple[str, ...]:
        """That activations take to the next stage, as transport:device."""
        found = () if self._outgoing is None else self._outgoing.connection.lanes()
        return tuple(dict.fromkeys(f"{lane.transport}:{lane.device}" for lane in found))

    async def open(self) -> None:
        """Done when all links of the group are open.

        Raises:
            StageUnreachable: not within the deadline; says what is missing.
            TransportUnavailable: this stage cannot listen.
        """
        self._listener = await self._transport.listen(self._settings.host, self._settings.port, self.door.on_connection)
        self._dialling = asyncio.create_task(self._keep_dialling(), name="dial the next stage")
        try:
            async with asyncio.timeout(self._settings.join_seconds):
                await self._settled.wait()
        except TimeoutError:
            seconds = f"{self._settings.join_seconds:g} s"
            raise StageUnreachable(
                f"the ring of {self._settings.group} is not complete after {seconds}: {self._missing()}"
            ) from None
        if not self._laps.complete:
            raise StageUnreachable(f"stage {self._settings.stage} was closed before its ring was complete")

    async def close(self, farewell: str, timeout: float) -> None:
        """Tell the neighbours why the group ends, take nobody in any more, free everything. Idempotent."""
        self._given_up = True
        self._settled.set()
        for link in (self._incoming, self._outgoing):
            if link is not None:
                self._close(link, farewell, timeout)
        if self._listener is not None:
            await self._listener.close()
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait((self._dialling,))
        await self.door.close()
        if self._closing:
            await asyncio.wait(set(self._closing))

    # ---- the ring comes about ----

    async def _keep_dialling(self) -> None:
        """Until the ring is complete: afterwards a lost link ends the group."""
        while not self._laps.complete:
            if self._outgoing is not None:
                self._outgoing_lost.clear()
                await self._outgoing_lost.wait()
                continue
            try:
                connection, agreed = await dial(self._settings, self._dialler, self._transport, self._lookup)
            except (StageUnreachable, TransportError) as error:
                self._note(str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._outgoing = self._link(connection, agreed, self._settings.next)
                self._outgoing.begin()
                self._note("the link is open")
                self._opened()

    def _admitted(self, connection: Connection, agreed: Agreed) -> None:
        link = self._link(connection, agreed, self._settings.previous)
        self._incoming = link
        self._inbound = self._receive(link)
        link.begin()
        self._opened()

    def _link(self, connection: Connection, agreed: Agreed, stage: int) -> Link:
        neighbour = f"stage {stage} ({self._settings.hosts[stage]}, {connection.peer})"
        return Link(connection, neighbour, agreed.boot_id, self._on_message, self._on_tick, self._on_link_lost)

    def _opened(self) -> None:
        if self._incoming is not None and self._outgoing is not None:
            self._lap(self._laps.opened())

    def _lap(self, number: int | None) -> None:
        if number is not None and self._outgoing is not None:
            self._outgoing.send(Lap(1 if number == 1 else 2))
        if self._laps.complete:
            self._settled.set()

    def _note(self, problem: str) -> None:
        """What became of the last try; a new one is worth a line."""
        if problem != self._problem:
            self._problem = problem
            _log.info("the next stage: %s", problem, extra={"stage": self._settings.next})

    def _missing(self) -> str:
        if self._outgoing is None:
            return f"stage {self._settings.next} cannot be reached: {self._problem}"
        if self._incoming is None:
            refused = sum(self.door.refused.values())
            return (
                f"stage {self._settings.previous} ({self._settings.hosts[self._settings.previous]}) has not connected, "
                f"{refused} other connections were refused: see its log"
            )
        return "both links of this stage are open, so two other stages do not reach each other: see their logs"

    # ---- links ----

    def _on_message(self, link: Link, message: Carry | Lap) -> None:
        if link is not self._incoming:
            raise ProtocolError(f"{type(message).__name__} came against the direction of the ring")
        if isinstance(message, Lap):
            self._lap(self._laps.received(message.number))
        elif not self._laps.complete:
            raise ProtocolError(f"{type(message.message).__name__} came before the ring was complete")
        else:
            assert self._inbound is not None
            self._inbound.carry(message)

    def _on_tick(self, link: Link) -> None:
        if link is self._incoming and self._inbound is not None:
            self._inbound.tick()

    def _on_link_lost(self, link: Link, text: str) -> None:
        if link not in (self._incoming, self._outgoing) or self._given_up:
            return
        if self._laps.complete:
            self._given_up = True
            self._on_lost(text)
            return
        _log.warning("a link was lost before the group was complete: %s", text)
        self._laps.lost(incoming=link is self._incoming)
        if link is self._incoming:
            self._incoming = self._inbound = None
        else:
            self._outgoing = None
            self._note(text)
            self._outgoing_lost.set()
        self._close(link, "the link is opened anew", CLOSE_SECONDS)

    def _close(self, link: Link, farewell: str, timeout: float) -> None:
        closing = asyncio.get_running_loop().create_task(link.close(farewell, timeout), name="close a link")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
