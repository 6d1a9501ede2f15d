"""The sidecar's side of the agent's socket: who is attached, what it says, what it is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from kvferry_contract.config import Role
from kvferry_runtime.errors import ProtocolError, RingError, RingUnavailable
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.messages import (
    PROTOCOL_VERSION,
    Alive,
    Attach,
    Attached,
    Beat,
    FromAgent,
    FromSidecar,
    Refused,
)
from kvferry_runtime.ring.socket import AgentChannel, AgentServer

ATTACH_SECONDS = 5.0
"""How long an agent may take from connecting to `Attach`."""

_log = logging.getLogger(__name__)


class AgentEvents(Protocol):
    """What the hub tells its owner; all of it in the event loop."""

    def agent_attached(self, attach: Attach) -> None: ...

    def agent_said(self, message: FromAgent) -> None:
        """Raises ProtocolError or RingError when the agent has a defect; it is then detached."""

    def agent_paused(self) -> None:
        """It has said all that it said at once."""

    def agent_lost(self, message: str) -> None:
        """Its process is gone, or was sent away. It does not touch the ring any more."""


class AgentHub:
    """At most one agent at a time."""

    def __init__(
        self, role: Role, ring: RingMemory, boot_id: str, events: AgentEvents, clock: Callable[[], float]
    ) -> None:
        self._role = role
        self._ring = ring
        self._boot_id = boot_id
        self._events = events
        self._clock = clock
        self._server = AgentServer()
        self._channel: AgentChannel | None = None
        self._beat_age = 0.0
        self._beat_at = 0.0
        self.attach: Attach | None = None
        """What the attached agent said of itself; None without one."""

    async def start(self, directory: Path) -> None:
        """Raises SettingsError: the socket cannot be made there."""
        await self._server.start(directory, self._accepted)

    def engine_age_ms(self) -> int:
        """Since the engine's loop was last seen turning; -1 without an engine."""
        if self.attach is None:
            return -1
        return int((self._beat_age + self._clock() - self._beat_at) * 1000)

    def send(self, message: FromSidecar) -> None:
        """Tell the agent, if there is one. One that does not read is detached."""
        if self._channel is None:
            return
        try:
            self._channel.send(message)
        except RingUnavailable as error:
            _log.warning("the agent does not take messages: %s", error)

    async def close(self) -> None:
        """Idempotent."""
        await self._server.close()

    def _accepted(self, channel: AgentChannel) -> None:
        waiting = asyncio.get_running_loop().call_later(ATTACH_SECONDS, self._too_late, channel)

        def closed(error: RingError) -> None:
            waiting.cancel()
            self._closed(channel, error)

        def heard(messages: list[FromAgent]) -> None:
            waiting.cancel()
            self._heard(channel, messages)

        channel.start(heard, closed)

    def _heard(self, channel: AgentChannel, messages: list[FromAgent]) -> None:
        try:
            if channel is not self._channel:
                first, *messages = messages
                if not self._admit(channel, first):
                    channel.close()
                    return
            for message in messages:
                if channel.closed:
                    return
                self._dispatch(message)
            self._events.agent_paused()
            channel.flush()
        except (RingError, ProtocolError) as error:
            self._send_away(channel, error)
        except Exception as error:
            _log.exception("the agent is sent away after a defect of the sidecar")
            channel.close()
            self._lost(channel, f"defect in the sidecar: {error!r}")

    def _closed(self, channel: AgentChannel, error: RingError) -> None:
        if isinstance(error, RingUnavailable):
            self._lost(channel, str(error))
        else:
            self._send_away(channel, error)

    def _send_away(self, channel: AgentChannel, error: Exception) -> None:
        _log.error("the agent is sent away: %s", error)
        channel.close()
        self._lost(channel, f"the engine's agent has a defect: {error}")

    def _too_late(self, channel: AgentChannel) -> None:
        if not channel.closed:
            _log.warning("an agent did not attach within %s s", ATTACH_SECONDS)
            channel.close()

    def _admit(self, channel: AgentChannel, message: FromAgent) -> bool:
        refusal = self._refusal(message)
        if refusal is not None or not isinstance(message, Attach):
            _log.warning("refused an agent: %s", refusal)
            channel.send(Refused(message=refusal or ""))
            return False
        self._channel, self.attach = channel, message
        self._beat_age, self._beat_at = 0.0, self._clock()
        channel.send(
            Attached(
                version=PROTOCOL_VERSION,
                sidecar_boot_id=self._boot_id,
                slots=self._ring.slots,
                chunk_bytes=self._ring.chunk_bytes,
            )
        )
        _log.info("agent attached", extra={"engine_boot_id": message.engine_boot_id, "role": message.role})
        self._events.agent_attached(message)
        return True

    def _refusal(self, message: FromAgent) -> str | None:
        if not isinstance(message, Attach):
            return f"the first message is {type(message).__name__} in place of Attach"
        if message.version != PROTOCOL_VERSION:
            return (
                f"ring protocol {message.version} there, {PROTOCOL_VERSION} here: "
                "use engine and sidecar images of the same release"
            )
        if message.role != self._role.value:
            return f"the engine's role is {message.role!r}, the sidecar's is {self._role.value!r}"
        if message.layer_count < 1 or message.first_layer + message.layer_count > message.total_layers:
            return f"layers {message.first_layer}+{message.layer_count} do not lie within {message.total_layers}"
        return None

    def _dispatch(self, message: FromAgent) -> None:
        match message:
            case Beat():
                self._beat_age, self._beat_at = message.age_ms / 1000, self._clock()
                self.send(Alive())
            case Attach():
                raise ProtocolError("Attach came twice")
            case _:
                self._events.agent_said(message)

    def _lost(self, channel: AgentChannel, message: str) -> None:
        if channel is not self._channel:
            return
        self._channel = self.attach = None
        _log.warning("agent lost: %s", message)
        self._events.agent_lost(message)
