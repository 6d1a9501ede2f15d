"""A sidecar that the agent has left: its socket stays open as long as a device works on slots that it lent."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kvferry_runtime.agent.link import SidecarLink

BUSY_SECONDS = 10.0
"""After which a device that still works on the slots is spoken of. Queued copies take milliseconds; what they wait for
is at most a pass of the engine."""

_log = logging.getLogger(__name__)


class Parting:
    """What was queued cannot be called back, and writes into the slots whenever its turn comes. So the slots are given
    back, by closing the socket, when the last of it is done; a device that never gets there keeps them for good.

    Only for the agent's thread.
    """

    def __init__(self, link: SidecarLink, busy: Callable[[], bool], now: float) -> None:
        """busy: whether copies from or into the link's slots go on. now: monotonic seconds."""
        self._link = link
        self._busy = busy
        self._since = now
        self._told = False

    def over(self, now: float) -> bool:
        """Whether it is; the link is then closed. Never blocks."""
        if not self._busy():
            self._link.close()
            return True
        if not self._told and now - self._since >= BUSY_SECONDS:
            self._told = True
            _log.error(
                "the device has not ended its copies %g s after this agent left the sidecar; it does not attach before "
                "they end, as they could spoil other chunks: if this stays the last word, restart the engine",
                BUSY_SECONDS,
            )
        return False
