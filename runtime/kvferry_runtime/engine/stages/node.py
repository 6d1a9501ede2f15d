"""One stage's place in the ring, within one event loop: carries messages, and ends once."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping

from kvferry_runtime.engine import stage_hosts
from kvferry_runtime.engine.stages.activations import Buffers
from kvferry_runtime.engine.stages.inbound import Inbound
from kvferry_runtime.engine.stages.link import Link
from kvferry_runtime.engine.stages.links import Links
from kvferry_runtime.engine.stages.messages import AnyMessage
from kvferry_runtime.engine.stages.outbound import Outbound
from kvferry_runtime.engine.stages.outbox import Letter, Outbox
from kvferry_runtime.engine.stages.ring import Activation, Array, OnLost, OnMessage, in_flight
from kvferry_runtime.engine.stages.route import Route, route
from kvferry_runtime.engine.stages.settings import RingSettings
from kvferry_runtime.errors import ProtocolError
from kvferry_runtime.transport.base import Transport

MAX_HELD = 1024
"""Messages that come before anybody wants them: until all stages are ready they only say so."""
LINK_SECONDS = 2.0
"""To give the buffers of a link back."""

_log = logging.getLogger(__name__)


class RingNode:
    """All methods but `send` are for the event loop's thread. Owns `transport`.

    marks: what has to be the same in all stages, beside the group itself.
    """

    def __init__(
        self,
        settings: RingSettings,
        marks: Mapping[str, str],
        max_activation_bytes: int,
        transport: Transport,
        lookup: stage_hosts.Lookup,
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._activation_bytes = max_activation_bytes
        # twice: a buffer may come back from the transport when its pass is over already
        self._buffers = Buffers(2 * in_flight(settings.stages), max_activation_bytes)
        self._outbox = Outbox(self._buffers, lambda: self._soon(self._flush))
        boot_id = secrets.token_bytes(16)
        self.links = Links(settings, marks, max_activation_bytes, boot_id, transport, lookup, self._receive, self._lose)
        self._sends: Outbound | None = None
        self._held: deque[tuple[AnyMessage, Activation | None]] = deque()
        self._on_message: OnMessage | None = None
        self._on_lost: OnLost | None = None
        self._lost: str | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._closing = False

    async def join(self) -> None:
        """As `Links.open`."""
        await self.links.open()
        settings = self._settings
        _log.info(
            "the group is complete", extra={"stage": settings.stage, "group": settings.group, "lanes": self.links.lanes}
        )
        self._flush()

    def start(self, on_message: OnMessage, on_lost: OnLost) -> None:
        """As `StageRing.start`."""
        self._on_message, self._on_lost = on_message, on_lost
        while self._held and self._lost is None:
            self._hand_over(*self._held.popleft())
        self._tell_lost()

    def send(self, message: AnyMessage, activation: Array | None) -> None:
        """As `StageRing.send`."""
        if not self._outbox.put(message, activation):
            self._soon(self._overflow)

    async def close(self, timeout: float) -> None:
        """As `StageRing.close`."""
        self._flush()
        self._closing = True
        stage = self._settings.stage
        await self._leave(self._lost or f"stage {stage} ({self._settings.hosts[stage]}) shuts down", timeout)

    # ---- messages ----

    def _receive(self, link: Link) -> Inbound:
        return Inbound(link, Buffers(in_flight(self._settings.stages), self._activation_bytes), self._arrived)

    def _arrived(self, message: AnyMessage, activation: Activation | None) -> None:
        try:
            where = route(message, self._settings.stage, self._settings.stages)
        except ProtocolError as error:
            self._lose(str(error))
            return
        if where is not Route.HERE and (outbound := self._outbound()) is not None:
            outbound.send(Letter(message, None, 0, None))
        if where is not Route.ON:
            self._hand_over(message, activation)

    def _hand_over(self, message: AnyMessage, activation: Activation | None) -> None:
        if self._lost is not None or self._closing:
            return
        if self._on_message is None:
            self._held.append((message, activation))
            if len(self._held) > MAX_HELD:
                self._lose(f"{MAX_HELD} messages came before stage {self._settings.stage} was ready")
            return
        try:
            self._on_message(message, activation)
        except Exception as error:
            _log.exception("a message of the group was not taken")
            self._lose(f"stage {self._settings.stage} could not take {type(message).__name__}: {error}")

    def _flush(self) -> None:
        outbound = self._outbound()
        if outbound is None:
            return  # what was said too early waits until the ring is complete
        for letter in self._outbox.take():
            outbound.send(letter)

    def _outbound(self) -> Outbound | None:
        """The way to the next stage, once the ring is complete."""
        if self._sends is None and (link := self.links.outgoing) is not None:
            self._sends = Outbound(link, self._buffers)
        return self._sends

    def _overflow(self) -> None:
        passes = in_flight(self._settings.stages)
        self._lose(
            f"stage {self._settings.next} does not take what is sent to it: {self._outbox.waiting} messages and "
            f"{self._buffers.count - self._buffers.free} activations wait, though {passes} passes may be under way"
        )

    # ---- the end ----

    def _lose(self, text: str) -> None:
        """The group is at its end, for this reason; the first one counts."""
        if self._lost is not None or self._closing:
            return
        self._lost = text
        _log.error("the group of stages is at its end: %s", text, extra={"group": self._settings.group})
        self._leaving = self._loop.create_task(self._leave(text, LINK_SECONDS), name="leave the ring")
        self._tell_lost()

    def _tell_lost(self) -> None:
        if self._on_lost is None or self._lost is None or self._closing:
            return
        on_lost, self._on_lost = self._on_lost, None
        on_lost(self._lost)

    async def _leave(self, farewell: str, timeout: float) -> None:
        self._outbox.close()
        try:
            async with asyncio.timeout(timeout):
                await self.links.close(farewell, timeout)
        except TimeoutError:
            _log.warning("the links of this stage were not closed in time", extra={"seconds": timeout})
        await self._transport.close()

    def _soon(self, act: Callable[[], None]) -> None:
        """From any thread; nothing once the ring's thread has ended."""
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            return
