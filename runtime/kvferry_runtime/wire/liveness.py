"""Whether a peer is alive: UCX does not report a cut link for minutes, so each side says PING once a second."""

from __future__ import annotations

INTERVAL_SECONDS = 1.0
MISSES = 3


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
