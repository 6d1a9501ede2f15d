"""Connections that came to a listener, from accepted to taken over or refused: no more at once than can be borne."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from kvferry_runtime.errors import Reason
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.transport.greeting import HandshakeRefused, turn_away
from kvferry_runtime.transport.log_limit import LogLimit
from kvferry_runtime.wire.handshake import Refusal, Refuse

MAX_UNAUTHENTICATED = 64
"""Connections in the handshake; more are turned away. As many that are turned away may take their time to close."""
CLOSE_SECONDS = 2.0
"""That a connection which came to nothing may take to close: its peer is told why, as far as it reads."""

_log = logging.getLogger(__name__)


class Doorway(ABC):
    """`on_connection` is what the transport's listener calls. All methods are for the event loop's thread."""

    def __init__(self) -> None:
        self._greetings: dict[asyncio.Task[None], Connection] = {}
        self._closings: set[asyncio.Task[None]] = set()
        self._closed = False
        self._log_limit = LogLimit(asyncio.get_running_loop().time)

    @abstractmethod
    async def _welcome(self, connection: Connection) -> None:
        """Shake hands and take the connection over. Where this fails, the connection is closed.

        Raises:
            HandshakeRefused: the peer was told, if it can be.
        """

    @abstractmethod
    def _count(self, refusal: Refusal) -> None:
        """A connection came to nothing."""

    def on_connection(self, connection: Connection) -> None:
        """Shake hands, or turn the connection away when too many are doing that."""
        if self._closed:
            self._close(connection)
            return
        if len(self._greetings) < MAX_UNAUTHENTICATED:
            task = asyncio.get_running_loop().create_task(self._greet(connection), name="greet")
            self._greetings[task] = connection
            task.add_done_callback(self._greeted)
            return
        message = f"{MAX_UNAUTHENTICATED} connections are in the handshake already"
        refused = turn_away(connection, Refusal.CAPACITY, Reason.NO_CAPACITY, message)
        self._refused(connection, refused.refuse)

    async def close(self) -> None:
        """End the handshakes that are under way. Idempotent."""
        self._closed = True
        for task in self._greetings:
            task.cancel()
        if self._greetings:
            await asyncio.wait(set(self._greetings))
        if self._closings:
            await asyncio.wait(set(self._closings))

    async def _greet(self, connection: Connection) -> None:
        try:
            await self._welcome(connection)
        except HandshakeRefused as error:
            self._refused(connection, error.refuse)
        except Exception:
            self._close(connection)
            raise

    def _greeted(self, task: asyncio.Task[None]) -> None:
        connection = self._greetings.pop(task)
        if task.cancelled():  # maybe before it began
            self._close(connection)

    def _refused(self, connection: Connection, refused: Refuse) -> None:
        self._count(refused.refusal)
        held_back = self._log_limit.held_back()
        if held_back is not None:
            _log.warning(
                "refused a connection from %s: %s", connection.peer, refused.message, extra={"held_back": held_back}
            )
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        # a flood of connections must not find as many descriptors that linger
        timeout = CLOSE_SECONDS if len(self._closings) < MAX_UNAUTHENTICATED else 0.0
        task = asyncio.get_running_loop().create_task(connection.close(timeout), name="turn away")
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)
