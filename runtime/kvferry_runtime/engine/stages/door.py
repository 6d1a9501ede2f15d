"""Who may come in: the stage before, once."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from kvferry_runtime.errors import Reason
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.transport.greeting import HandshakeRefused, greet, tell
from kvferry_runtime.transport.log_limit import LogLimit
from kvferry_runtime.wire.handshake import TIMEOUT_SECONDS, Acceptor, Agreed, Party, Refusal, Refuse, refuse

MAX_UNAUTHENTICATED = 64
"""Connections in the handshake, and as many that are being turned away; more are cut off at once."""
CLOSE_SECONDS = 2.0

_log = logging.getLogger(__name__)


class Door:
    """taken: whether the stage before is in. admit: takes over its connection.

    `refused` counts the connections that came to nothing.
    """

    def __init__(
        self, party: Party, key: bytes, taken: Callable[[], bool], admit: Callable[[Connection, Agreed], None]
    ) -> None:
        self._party = party
        self._key = key
        self._taken = taken
        self._admit = admit
        self._tasks: set[asyncio.Task[None]] = set()
        self._greetings = 0
        self._log_limit = LogLimit(asyncio.get_running_loop().time)
        self.refused: Counter[Refusal] = Counter()

    def on_connection(self, connection: Connection) -> None:
        """What the transport's listener calls."""
        if len(self._tasks) >= 2 * MAX_UNAUTHENTICATED:
            self._start(self._turn_away(connection, "too many connections come at once", 0))
        elif self._greetings >= MAX_UNAUTHENTICATED:
            message = f"{MAX_UNAUTHENTICATED} connections are in the handshake already"
            self._start(self._turn_away(connection, message, CLOSE_SECONDS))
        elif self._taken():
            self._start(self._turn_away(connection, "the stage before is connected already", CLOSE_SECONDS))
        else:
            self._start(self._greet(connection))

    async def close(self) -> None:
        """End the handshakes that are under way. Idempotent."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="stage door")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(self, connection: Connection) -> None:
        self._greetings += 1
        admitted = False
        try:
            # a session number means nothing here: a link has its connection for itself
            acceptor = Acceptor(self._party, self._key, secrets.token_bytes(16), 1, connection.data_address)
            agreed = await greet(connection, acceptor, TIMEOUT_SECONDS)
            if self._taken():
                raise HandshakeRefused(Refuse(Refusal.CAPACITY, Reason.NO_CAPACITY, "another one was faster", None))
            self._admit(connection, agreed)
            admitted = True
        except HandshakeRefused as error:
            self._count(connection, error.refuse)
        finally:
            self._greetings -= 1
            if not admitted:
                await connection.close(CLOSE_SECONDS)

    async def _turn_away(self, connection: Connection, message: str, timeout: float) -> None:
        refused = refuse(Refusal.CAPACITY, Reason.NO_CAPACITY, message, retriable=True)
        tell(connection, refused)
        self._count(connection, refused)
        await connection.close(timeout)

    def _count(self, connection: Connection, refused: Refuse) -> None:
        self.refused[refused.refusal] += 1
        held_back = self._log_limit.held_back()
        if held_back is not None:
            _log.warning(
                "refused a connection from %s: %s", connection.peer, refused.message, extra={"held_back": held_back}
            )
