"""Who may come in: the stage before, once."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable

from kvferry_runtime.errors import Reason
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.transport.doorway import Doorway
from kvferry_runtime.transport.greeting import HandshakeRefused, greet, turn_away
from kvferry_runtime.wire.handshake import TIMEOUT_SECONDS, Acceptor, Agreed, Party, Refusal, Refuse


class Door(Doorway):
    """taken: whether the stage before is in. admit: takes over its connection.

    `refused` counts the connections that came to nothing.
    """

    def __init__(
        self, party: Party, key: bytes, taken: Callable[[], bool], admit: Callable[[Connection, Agreed], None]
    ) -> None:
        super().__init__()
        self._party = party
        self._key = key
        self._taken = taken
        self._admit = admit
        self.refused: Counter[Refusal] = Counter()

    async def _welcome(self, connection: Connection) -> None:
        if self._taken():
            message = "the stage before is connected already"
            raise turn_away(connection, Refusal.CAPACITY, Reason.NO_CAPACITY, message)
        # a session number means nothing here: a link has its connection for itself
        acceptor = Acceptor(self._party, self._key, secrets.token_bytes(16), 1, self._once_proved(connection))
        agreed = await greet(connection, acceptor, TIMEOUT_SECONDS)
        if self._taken():
            raise HandshakeRefused(Refuse(Refusal.CAPACITY, Reason.NO_CAPACITY, "another one was faster", None))
        self._admit(connection, agreed)

    def _count(self, refusal: Refusal) -> None:
        self.refused[refusal] += 1
