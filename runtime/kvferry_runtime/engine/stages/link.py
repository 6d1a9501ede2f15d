"""One link of the ring: a connection to a neighbour after the handshake, and whether that neighbour is alive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from kvferry_runtime.engine.stages.link_messages import AnyLinkMessage, Carry, Ended, Lap, Ping, decode, encode
from kvferry_runtime.engine.stages.messages import MAX_LONG_TEXT
from kvferry_runtime.errors import FrameError, ProtocolError, TransportError
from kvferry_runtime.transport.base import Connection
from kvferry_runtime.wire.frames import MAX_CONTROL_BYTES
from kvferry_runtime.wire.liveness import INTERVAL_SECONDS, Liveness

_log = logging.getLogger(__name__)


class Link:
    """neighbour: what it is called in messages, with its address. boot_id: of its process.

    All methods are for the event loop's thread. `on_lost` is called once, from within the call that finds it out, and
    never after `close` began.
    """

    def __init__(
        self,
        connection: Connection,
        neighbour: str,
        boot_id: bytes,
        on_message: Callable[[Link, Carry | Lap], None],
        on_tick: Callable[[Link], None],
        on_lost: Callable[[Link, str], None],
    ) -> None:
        self.connection = connection
        self.neighbour = neighbour
        self._liveness = Liveness(boot_id)
        self._on_message = on_message
        self._on_tick = on_tick
        self._on_lost = on_lost
        self._over = False
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    def begin(self) -> None:
        """Start to listen, and to say that this side is alive."""
        self._tasks = tuple(asyncio.create_task(work(), name=self.neighbour) for work in (self._read, self._tick))

    def send(self, message: AnyLinkMessage) -> None:
        """Queue a message. Nothing after the loss of the link."""
        if self._over:
            return
        try:
            self.connection.send_control(encode(message))
        except TransportError as error:
            self.lose(f"{self.neighbour} cannot be reached any more: {error}")

    def lose(self, text: str) -> None:
        """The link is of no use, for this reason. Nothing happens if that is known."""
        if not self._over:
            self._over = True
            self._on_lost(self, text)

    async def close(self, farewell: str, timeout: float) -> None:
        """Tell the neighbour that the group ends, and why, as far as it listens; free everything. Idempotent."""
        self._over = True
        with contextlib.suppress(TransportError):  # then it knows, or learns it from the end of the connection
            self.connection.send_control(encode(Ended(farewell[:MAX_LONG_TEXT])))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.connection.close(timeout)

    async def _read(self) -> None:
        try:
            while not self._over:
                message = decode(await self.connection.receive_control(MAX_CONTROL_BYTES))
                self._liveness.heard()
                if isinstance(message, Ended):
                    self.lose(message.message)
                elif not isinstance(message, Ping):
                    self._on_message(self, message)
        except TransportError as error:
            self.lose(f"{self.neighbour} is gone: {error}")
        except (FrameError, ProtocolError) as error:
            self.lose(f"{self.neighbour} sent what no stage sends: {error}")
        except Exception as error:
            _log.exception("a message from %s was not taken", self.neighbour)
            self.lose(f"a message from {self.neighbour} could not be taken: {error}")

    async def _tick(self) -> None:
        while True:
            self.send(Ping(self._liveness.tick() % (1 << 31)))
            if self._liveness.dead:
                self.lose(f"{self.neighbour} has been silent for some seconds: its process or the network stands still")
            if self._over:
                return
            self._on_tick(self)
            await asyncio.sleep(INTERVAL_SECONDS)
