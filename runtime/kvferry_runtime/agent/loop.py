"""The agent's thread: waits on the sidecar's socket and on the engine, keeps the connection, beats once a second."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from pathlib import Path

from kvferry_runtime.agent.link import SidecarLink
from kvferry_runtime.agent.loads import Load
from kvferry_runtime.agent.mailbox import Mailbox
from kvferry_runtime.agent.parting import Parting
from kvferry_runtime.agent.sends import Send
from kvferry_runtime.agent.transfers import OpenTransfers
from kvferry_runtime.errors import Reason, RingError, RingUnavailable, TransferFailed
from kvferry_runtime.ring.messages import (
    Alive,
    Arrived,
    Attach,
    Attached,
    Beat,
    Chosen,
    Fill,
    FromSidecar,
    Loaded,
    LoadFailed,
    Refused,
    Sent,
)

BEAT_SECONDS = 1.0
MISSED_BEATS = 3
"""Unanswered ones after which a sidecar that still has its socket is taken for lost, as peers do with PING. Counted and
not timed, so that a stall of this thread is not held against the sidecar."""
ATTACH_SECONDS = 5.0
"""How long a sidecar may take to answer `Attach`."""
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 1.0

FLUSH_BYTES = 2 << 20
"""After so many bytes copied the sidecar hears of it, so that it can send (post) while the next ones are copied."""
_log = logging.getLogger(__name__)


class AgentLoop:
    """Body of the agent's thread; `run` returns after `stop`."""

    def __init__(
        self,
        directory: Path,
        attach: Attach,
        transfers: OpenTransfers,
        mailbox: Mailbox[Send | Load],
        engine_age: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._attach = attach
        self._transfers = transfers
        self._mailbox = mailbox
        self._engine_age = engine_age
        self._link: SidecarLink | None = None
        self._link_since = 0.0
        self._parting: Parting | None = None
        """From the sidecar before this one; none is attached to as long as it lasts."""
        self._next_attempt = 0.0
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._next_beat = 0.0
        self._unanswered = 0
        self._refusal = ""
        self._unflushed = 0
        self._stopping = False
        self.copying = False
        """A slot is being written or read right now."""

    @property
    def attached(self) -> bool:
        link = self._link
        return link is not None and link.attached

    def stop(self) -> None:
        """From any thread: end what is open as cancelled, then return from `run`."""
        self._stopping = True
        self._mailbox.wake()

    def run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except RingUnavailable as error:
                self._detach(Reason.SIDECAR_LOST, str(error))
            except RingError as error:
                _log.error("lost the sidecar: %s", error)
                self._detach(Reason.SIDECAR_LOST, str(error))
            except Exception as error:
                _log.exception("defect in the agent; attaching again")
                self._detach(Reason.INTERNAL, f"defect in the agent: {error!r}")
        self._end()

    def _turn(self) -> None:
        """Wait for something to happen, and deal with all of it."""
        now = time.monotonic()
        self._part(now)
        if self._may_connect and now >= self._next_attempt:
            self._connect(now)
        if now >= self._next_beat:
            self._beat(now)
        readable = self._wait(now)
        while transfer := self._mailbox.take():
            self._transfers.look(transfer, self._attached_link())
        if self._link is None:
            return
        if readable:
            # One packet, then the engine's wishes are looked at again, however busy the sidecar is.
            for message in self._link.receive():
                self._handle(message, self._link)
        self._link.flush()

    def _wait(self, now: float) -> bool:
        """Until engine, sidecar or device want something or it is time. Returns whether the sidecar spoke."""
        poller = select.poll()
        poller.register(self._mailbox, select.POLLIN)
        until = self._next_beat
        if self._may_connect:
            until = min(until, self._next_attempt)
        if self._link is not None:
            poller.register(self._link, select.POLLIN | (select.POLLOUT if self._link.wants_write else 0))
        events = poller.poll(max(0.0, until - now) * 1000)
        descriptor = self._mailbox.fileno()
        return any(found != descriptor and event & ~select.POLLOUT for found, event in events)

    def _handle(self, message: FromSidecar, link: SidecarLink) -> None:
        match message:
            case Fill():
                self.copying = True
                self._transfers.fill(message, link)
                self._copied(link)
            case Arrived():
                self.copying = True
                self._transfers.arrived(message, link)
                self._copied(link)
            case Chosen():
                self._transfers.chosen(message, link)
            case Alive():
                self._unanswered = 0
            case Sent():
                self._transfers.sent(message)
            case Loaded():
                self._transfers.loaded(message)
            case LoadFailed():
                self._transfers.failed(message)
            case Attached():
                link.accept(message)
                self._transfers.attached(link.ring)
                self._retry_seconds = FIRST_RETRY_SECONDS
                self._refusal = ""
                _log.info("attached to the sidecar", extra={"slots": message.slots, "boot_id": message.sidecar_boot_id})
            case Refused():
                if message.message != self._refusal:
                    _log.warning("the sidecar refused this agent: %s", message.message)
                self._refusal = message.message
                raise RingUnavailable(f"refused by the sidecar: {message.message}")

    def _copied(self, link: SidecarLink) -> None:
        self.copying = False
        self._unflushed += link.ring.chunk_bytes
        if self._unflushed >= FLUSH_BYTES:
            self._unflushed = 0
            link.flush()

    def _connect(self, now: float) -> None:
        self._next_attempt = now + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, LAST_RETRY_SECONDS)
        try:
            self._link = SidecarLink.connect(self._directory, self._attach)
        except RingUnavailable as error:
            _log.debug("not attached: %s", error)
            return
        self._link_since = now
        self._unanswered = 0

    def _beat(self, now: float) -> None:
        """Once a second: say that the engine lives, and end what should have ended."""
        self._next_beat = now + BEAT_SECONDS
        link = self._attached_link()
        if link is not None:
            if self._unanswered >= MISSED_BEATS:
                raise RingUnavailable(f"the sidecar has not answered {MISSED_BEATS} beats, {BEAT_SECONDS:g} s apart")
            self._unanswered += 1
            link.send(Beat(age_ms=max(0, int(self._engine_age() * 1000))))
        elif self._link is not None and now - self._link_since > ATTACH_SECONDS:
            raise RingUnavailable(f"the sidecar did not answer within {ATTACH_SECONDS} s")
        self._transfers.expire(now, link)

    def _attached_link(self) -> SidecarLink | None:
        return self._link if self.attached else None

    @property
    def _may_connect(self) -> bool:
        return self._link is None and self._parting is None

    def _part(self, now: float) -> None:
        if self._parting is not None and self._parting.over(now):
            self._parting = None

    def _detach(self, reason: Reason, message: str) -> None:
        """End all transfers and leave the sidecar, whose socket is closed when no device works on its slots."""
        now = time.monotonic()
        self.copying = False
        self._transfers.end_all(reason, message)
        if self._link is not None:
            if self._link.attached:
                level = logging.INFO if self._stopping else logging.WARNING
                _log.log(level, "detached from the sidecar: %s", message)
            self._parting = Parting(self._link, lambda: self._transfers.busy, now)
            self._link = None
        self._part(now)
        self._next_attempt = now + self._retry_seconds

    def _end(self) -> None:
        """The engine closes: give everything back, tell the sidecar, let go once no device works on its slots.

        The engine waits for that as long as `HostAgent.close` was told to; what is left then ends with the process.
        """
        message = "the engine is shutting down"
        link = self._attached_link()
        try:
            self._transfers.cancel_all(link, message)
            if link is not None:
                link.flush()
        except RingError as error:
            _log.debug("the sidecar was gone before this agent: %s", error)
        self._detach(Reason.CANCELLED, message)
        self._refuse(message)
        while self._parting is not None:
            now = time.monotonic()
            self._next_beat = now + BEAT_SECONDS
            self._wait(now)
            self._refuse(message)
            self._part(time.monotonic())

    def _refuse(self, message: str) -> None:
        """End what the engine began too late."""
        while transfer := self._mailbox.take():
            self._transfers.end(transfer, TransferFailed(Reason.CANCELLED, message))
