"""Connections that came to a listener, from accepted to taken over or refused: no more at once than can be borne."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable

from kvferry_runtime.errors import Reason
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.transport.greeting import HandshakeRefused, turn_away
from kvferry_runtime.transport.log_limit import LogLimit
from kvferry_runtime.wire.handshake import Refusal, Refuse

MAX_UNAUTHENTICATED = 64
"""Connections in the handshake. One more takes the place of the oldest that has not proved the key, of those from the
host that has most of these, so that one that is silent there keeps nobody out; where all have proved it, it is turned
away itself. As many that are turned away may take their time to close.
"""
CLOSE_SECONDS = 2.0
"""That a connection which came to nothing may take to close: its peer is told why, as far as it reads."""

_log = logging.getLogger(__name__)


class Doorway(ABC):
    """`on_connection` is what the transport's listener calls. All methods are for the event loop's thread."""

    def __init__(self) -> None:
        self._greetings: dict[asyncio.Task[None], Connection] = {}
        self._proved: set[Connection] = set()
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
        """Shake hands, or turn a connection away when too many are doing that."""
        if self._closed:
            self._close(connection)
            return
        if len(self._greetings) >= MAX_UNAUTHENTICATED:
            unwanted = self._least_wanted()
            message = f"{MAX_UNAUTHENTICATED} connections are in the handshake already"
            refused = turn_away(unwanted or connection, Refusal.CAPACITY, Reason.NO_CAPACITY, message)
            self._refused(unwanted or connection, refused.refuse)
            if unwanted is None:
                return
        task = asyncio.get_running_loop().create_task(self._greet(connection), name="greet")
        self._greetings[task] = connection
        task.add_done_callback(self._greeted)

    async def close(self) -> None:
        """End the handshakes that are under way. Idempotent."""
        self._closed = True
        for task in self._greetings:
            task.cancel()
        if self._greetings:
            await asyncio.wait(set(self._greetings))
        if self._closings:
            await asyncio.wait(set(self._closings))

    def _once_proved(self, connection: Connection) -> Callable[[], bytes]:
        """The `data_address` of this connection, for a handshake: it asks for it once the peer has proved the key."""

        def address() -> bytes:
            self._proved.add(connection)
            return connection.data_address()

        return address

    def _least_wanted(self) -> Connection | None:
        """Whose handshake was ended now, to make room; None if all have proved the key."""
        greetings = self._greetings.items()
        strangers = {task: each for task, each in greetings if not task.done() and each not in self._proved}
        if not strangers:
            return None
        places = Counter(_host(each) for each in strangers.values())
        task = max(strangers, key=lambda each: places[_host(strangers[each])])
        task.cancel()
        self._closings.add(task)
        return self._greetings.pop(task)

    async def _greet(self, connection: Connection) -> None:
        try:
            await self._welcome(connection)
        except HandshakeRefused as error:
            self._refused(connection, error.refuse)
        except Exception:
            self._close(connection)
            raise

    def _greeted(self, task: asyncio.Task[None]) -> None:
        self._closings.discard(task)
        connection = self._greetings.pop(task, None)
        if connection is None:
            return  # it had to make room
        self._proved.discard(connection)
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


def _host(connection: Connection) -> str:
    return connection.peer.rpartition(":")[0]
