"""The engine's thread, and the only way into it: a bounded inbox."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from kvferry_runtime.engine.reference.core import EngineCore
from kvferry_runtime.engine.reference.messages import Cancel, Message, Submit, Withdraw
from kvferry_runtime.engine.reference.request import Request, Stage
from kvferry_runtime.errors import StageUnreachable

MAX_WAITING = 256
"""Requests that wait for blocks; more are refused, so that a client can go elsewhere."""
IDLE_SECONDS = 0.5
"""How long an idle loop sleeps: it bounds the age that is reported for a healthy engine, and how late a deadline is
noticed."""

_log = logging.getLogger(__name__)


class Refused(Exception):
    """The engine takes no (more) requests now."""


class EngineLoop:
    """Turns the core in a thread of its own. All methods may be called from any thread."""

    def __init__(
        self,
        build: Callable[[Callable[[Message], None], Callable[[], None]], EngineCore],
        ended: Callable[[], None],
    ) -> None:
        """build: makes the core from its `post` and `beat`. ended: called when the thread ends, by a defect too."""
        self._ended = ended
        self._condition = threading.Condition()
        self._inbox: deque[Message] = deque()
        self._submitted = 0
        self._stopping = False
        self._turned = time.monotonic()
        self._core = build(self.post, self._beat)
        self._thread = threading.Thread(target=self._run, name="kvferry-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Take a request in.

        Raises:
            Refused: too many wait already, or the engine is stopping.
        """
        with self._condition:
            if self._stopping:
                raise Refused("the engine is shutting down: send the request to another one")
            waiting = self._submitted + self._core.counts()[Stage.WAITING]
            if waiting >= MAX_WAITING:
                raise Refused(f"{waiting} requests wait already, at most {MAX_WAITING} may: try again later")
            self._submitted += 1
            self._inbox.append(Submit(request))
            self._condition.notify()

    def cancel(self, request: Request) -> None:
        """The client went away. Idempotent; harmless after the end."""
        self.post(Cancel(request))

    def withdraw(self, transfer_id: str) -> None:
        """Give up an offer whose request was answered already. Idempotent; harmless for unknown ids."""
        self.post(Withdraw(transfer_id))

    def age(self) -> float:
        """Seconds since there was progress; stays under `IDLE_SECONDS` when there is nothing to do."""
        return time.monotonic() - self._turned

    def alive(self) -> bool:
        return self._thread.is_alive()

    def counts(self) -> dict[str, int]:
        """Requests in each stage; those that the engine has not looked at yet count as waiting."""
        counts = self._core.counts()
        counts[Stage.WAITING] += self._submitted
        return counts

    def idle(self) -> bool:
        """Whether no request is open."""
        return not any(self.counts().values())

    def stop(self, timeout: float) -> None:
        """Fail what is open and end the thread, after the pass that runs. Idempotent."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def post(self, message: Message) -> None:
        """For what stages and agents say."""
        with self._condition:
            self._inbox.append(message)
            self._condition.notify()

    def _beat(self) -> None:
        self._turned = time.monotonic()

    def _run(self) -> None:
        busy = False
        code, reason = "draining", "the engine is shutting down"
        try:
            while not self._stopping:
                self._take(self._receive(wait=not busy))
                busy = self._core.turn()
        except StageUnreachable as error:
            _log.error("this group of stages has come to its end: %s", error)
            code, reason = "unavailable", str(error)
        except Exception:
            _log.exception("the engine's loop ended by a defect")
        finally:
            with self._condition:
                self._stopping = True
            self._take(self._receive(wait=False))
            self._core.abandon(code, reason)
            self._ended()

    def _receive(self, *, wait: bool) -> list[Message]:
        """What came since the last call; if there is nothing, wait for it at most `IDLE_SECONDS`."""
        with self._condition:
            self._beat()
            if wait and not self._inbox and not self._stopping:
                self._condition.wait(IDLE_SECONDS)
                self._beat()
            messages = list(self._inbox)
            self._inbox.clear()
            return messages

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            self._core.take(message)
            if isinstance(message, Submit):
                with self._condition:
                    self._submitted -= 1
