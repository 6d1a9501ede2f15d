"""Whether a peer is alive: UCX does not report a cut link for minutes, so each side says PING once a second.

The two ways of a session can fail apart: PINGs show that control lives, and by the number of messages that they name,
whether data does too.
"""

from __future__ import annotations

INTERVAL_SECONDS = 1.0
MISSES = 3
STALL_TICKS = 15
"""Patience with data that is on its way: less than a transfer's usual deadline, more than any chunk takes on a link
worth using."""


class Liveness:
    """Counts ticks in which nothing was heard.

    Ticks and not seconds: a process that was stopped for ten seconds finds the peer's pings waiting when it goes on,
    and must not declare the peer dead before it has read them.
    """

    def __init__(self, boot_id: bytes) -> None:
        self._boot_id = boot_id
        self._heard = True
        self._misses = 0
        self._sequence = 0
        self._restarted = False

    @property
    def dead(self) -> bool:
        """The peer has not been heard in `MISSES` ticks in a row, or another process answers in its place."""
        return self._restarted or self._misses >= MISSES

    def heard(self) -> None:
        """Any message came."""
        self._heard = True
        self._misses = 0

    def ping(self, boot_id: bytes) -> None:
        """A PING came from the process with this boot id."""
        self.heard()
        self._restarted = self._restarted or boot_id != self._boot_id

    def tick(self) -> int:
        """To be called every `INTERVAL_SECONDS`. Returns the number of the PING to send."""
        self._misses = 0 if self._heard else self._misses + 1
        self._heard = False
        self._sequence += 1
        return self._sequence


class DataFlow:
    """Counts ticks in which data is missing that the peer has sent, and none arrives.

    Without it a session whose messages are lost would stay open with all its credits spent, and every transfer that
    comes to it would run into its deadline. Ticks and not seconds for the same reason as above.
    """

    def __init__(self) -> None:
        self._sent = 0
        self._arrived = 0
        self._silent = 0

    @property
    def missing(self) -> int:
        """Messages that were sent and did not arrive (yet)."""
        return max(0, self._sent - self._arrived)

    @property
    def stalled(self) -> bool:
        return self._silent >= STALL_TICKS

    def sent(self, count: int) -> None:
        """The peer said how many messages it has sent so far."""
        self._sent = count

    def arrived(self) -> None:
        """One more is here."""
        self._arrived += 1
        self._silent = 0

    def tick(self) -> None:
        """To be called every `INTERVAL_SECONDS`."""
        self._silent = self._silent + 1 if self.missing else 0
