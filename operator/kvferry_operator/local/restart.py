"""How long a container that ended waits before it starts again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
FORGIVEN_SECONDS = 60.0
"""A container that ran this long starts anew with the first delay."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles with each early end, as the kubelet's does; shorter, since one machine has one user who waits."""

    delay: float = FIRST_SECONDS

    def after(self, ran_seconds: float) -> tuple[float, Backoff]:
        """The wait after a run of this length, and the back-off for the next end."""
        delay = FIRST_SECONDS if ran_seconds >= FORGIVEN_SECONDS else self.delay
        return delay, Backoff(min(2 * delay, LONGEST_SECONDS))
